package parity

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"triune.dev/tests/hooks"
)

// hookCase is a case with admission webhooks, which are active before its first step. Each
// webhook is written as in its configuration, except that
//
//   - name is the first label of its name,
//   - does names its answer, one of hookAnswers or hooks.NoReviews,
//   - for has its rules, such as "CREATE,UPDATE apps/v1/deployments/scale" (core is "core"),
//   - the default selector is the namespace of the case,
//   - and other required fields have harmless defaults.
type hookCase struct {
	Case
	Mutating   []map[string]any `json:"mutating,omitempty"`
	Validating []map[string]any `json:"validating,omitempty"`
	// Prepare are requests before there are any webhooks.
	Prepare []Request `json:"prepare,omitempty"`
	// Unreachable says that no webhook can be reached.
	Unreachable bool `json:"unreachable,omitempty"`
	// Short cases also run with -short.
	Short bool `json:"short,omitempty"`
}

func loadHookCases(t *testing.T) []hookCase {
	t.Helper()
	files, err := filepath.Glob("testdata/webhooks/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("load cases: %d files, %v", len(files), err)
	}
	var all []hookCase
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var cases []hookCase
		if err := yaml.UnmarshalStrict(data, &cases); err != nil {
			t.Fatalf("load %s: %v", file, err)
		}
		all = append(all, cases...)
	}
	return all
}

// hookSite has the two webhook servers, one for each of the two servers under comparison.
type hookSite struct {
	peers              [2]*Peer
	certificate, other *hooks.Certificate
	servers            [2]*hookServer
	// namespace has the Service hook, which is another way to reach the webhooks.
	namespace string
}

func newHookSite(t *testing.T, peers [2]*Peer) *hookSite {
	t.Helper()
	p := newPairOf(t, peers)
	p.createNamespace()
	site := &hookSite{peers: peers, namespace: p.reference["ns"]}
	// A name may resolve to the loopback address, while an endpoint must not be one.
	p.same(Request{Do: "POST /api/v1/namespaces/${ns}/services", Unchecked: true, Object: map[string]any{
		"metadata": map[string]any{"name": "hook"}, "spec": map[string]any{"type": "ExternalName", "externalName": "localhost"},
	}})
	var err error
	if site.certificate, err = hooks.NewCertificate("hook." + site.namespace + ".svc"); err != nil {
		t.Fatal(err)
	}
	if site.other, err = hooks.NewCertificate(); err != nil {
		t.Fatal(err)
	}
	for i := range site.servers {
		site.servers[i] = newHookServer(site.certificate)
		t.Cleanup(site.servers[i].Close)
	}
	return site
}

// newPair starts a conversation with the addresses of the webhooks in its variables.
func (s *hookSite) newPair(t *testing.T) *pair {
	t.Helper()
	p := newPairOf(t, s.peers)
	for i, vars := range []map[string]string{p.reference, p.tested} {
		address := s.servers[i].Listener.Addr().String()
		vars["hook"], vars["ca"], vars["other-ca"] = "https://"+address+"/"+vars["ns"], bundle(s.certificate), bundle(s.other)
		vars["hooks"] = s.namespace
		vars["port"] = address[strings.LastIndexByte(address, ':')+1:]
		n := p.normalisers[i]
		n.Hosts = append(n.Hosts, address, "svc:"+vars["port"], "localhost:"+vars["port"])
	}
	return p
}

// TestWebhooks sends the cases of testdata/webhooks to both servers, and compares the
// answers and the reviews.
func TestWebhooks(t *testing.T) {
	site := newHookSite(t, [2]*Peer{peers.reference, peers.tested})
	t.Run("cases", func(t *testing.T) {
		for _, c := range loadHookCases(t) {
			if testing.Short() && !c.Short {
				continue
			}
			t.Run(c.Name, func(t *testing.T) {
				t.Parallel()
				p := site.newPair(t)
				p.createNamespace()
				for _, r := range c.Prepare {
					p.same(r)
				}
				site.register(p, c)
				reviews := 0
				for i, r := range c.Steps {
					asked, same := site.same(p, r)
					if reviews += asked; !same {
						t.Logf("in step %d of %d", i+1, len(c.Steps))
					}
				}
				if unasked := c.Unreachable || len(c.Mutating)+len(c.Validating) == 0; unasked != (reviews == 0) {
					t.Errorf("webhooks were asked %d times", reviews)
				}
			})
		}
	})
}

// same is pair.same for a request with webhooks. It also returns the number of reviews.
func (s *hookSite) same(p *pair, r Request) (reviews int, ok bool) {
	p.t.Helper()
	for _, server := range s.servers {
		server.take(p.reference["ns"])
	}
	ok = p.same(r)
	var asked [2][]any
	for i, server := range s.servers {
		reviews := server.take(p.reference["ns"])
		// Mutating webhooks are called one after the other, validating ones concurrently.
		slices.SortStableFunc(reviews, func(a, b review) int {
			return strings.Compare(validatingPath(a.Path), validatingPath(b.Path))
		})
		n := p.normalisers[i]
		n.Volatile = nil
		for _, path := range r.Volatile {
			n.Volatile = append(n.Volatile, "Body.request.object."+path, "Body.request.oldObject."+path)
			if path == "metadata.name" {
				n.Volatile = append(n.Volatile, "Body.request.name")
			}
		}
		for _, asking := range reviews {
			data, err := json.Marshal(asking)
			if err != nil {
				p.t.Fatal(err)
			}
			normal, err := n.JSON(data)
			if err != nil {
				p.t.Fatal(err)
			}
			asked[i] = append(asked[i], normal)
		}
	}
	if diff := cmp.Diff(asked[0], asked[1]); diff != "" {
		p.t.Errorf("%s: webhooks are asked (-by kube-apiserver +by tested):\n%s", r.Do, limit(diff, 6000))
		return len(asked[0]), false
	}
	return len(asked[0]), ok
}

// validatingPath is empty for mutating webhooks.
func validatingPath(path string) string {
	if strings.Contains(path, "/validating/") {
		return path
	}
	return ""
}

const (
	admissionAPI = "/apis/admissionregistration.k8s.io/v1/"
	// sightings is how many times in a row a configuration must be seen to be active, for
	// each replica of the tiers.
	sightings = 4
)

// register creates the configurations of a case, and waits until they are active.
func (s *hookSite) register(p *pair, c hookCase) {
	p.t.Helper()
	var kinds []string
	for _, kind := range []string{"mutating", "validating"} {
		webhooks := c.Mutating
		if kind == "validating" {
			webhooks = c.Validating
		}
		if len(webhooks) == 0 {
			continue
		}
		kinds = append(kinds, kind)
		probe := map[string]any{
			"name": "probe", "does": probing, "namespaceSelector": map[string]any{},
			"for":            []any{"CREATE core/v1/configmaps", "CREATE apiextensions.k8s.io/v1/customresourcedefinitions", "CREATE apiregistration.k8s.io/v1/apiservices"},
			"objectSelector": map[string]any{"matchLabels": map[string]any{"probe": "${ns}"}},
		}
		all := make([]any, 0, len(webhooks)+1)
		for _, webhook := range append([]map[string]any{probe}, webhooks...) {
			all = append(all, configured(p.t, kind, webhook))
		}
		path := admissionAPI + kind + "webhookconfigurations"
		data, err := json.Marshal(map[string]any{"metadata": map[string]any{"name": "${ns}"}, "webhooks": all})
		if err != nil {
			p.t.Fatal(err)
		}
		body := strings.ReplaceAll(string(data), `"${port}"`, "${port}") // a number
		p.same(Request{Do: "POST " + path + "?fieldValidation=Strict", Unchecked: true, Body: body})
		p.t.Cleanup(func() {
			cleanup := *p
			ctx, cancel := context.WithTimeout(context.Background(), requestTimeout)
			defer cancel()
			for i, vars := range []map[string]string{cleanup.reference, cleanup.tested} {
				if _, err := cleanup.peers[i].Send(ctx, Request{Do: "DELETE " + path + "/${ns}"}, vars); err != nil {
					p.t.Error(err)
				}
			}
		})
	}
	p.probe(kinds)
}

// configured returns a webhook as it is in a configuration.
func configured(t *testing.T, kind string, webhook map[string]any) map[string]any {
	t.Helper()
	out := map[string]any{
		"admissionReviewVersions": []any{"v1"}, "sideEffects": "None",
		"namespaceSelector": map[string]any{"matchLabels": map[string]any{"kubernetes.io/metadata.name": "${ns}"}},
		"clientConfig":      map[string]any{"url": fmt.Sprintf("${hook}/%s/%v/%v", kind, webhook["name"], webhook["does"]), "caBundle": "${ca}"},
	}
	if _, selects := webhook["objectSelector"]; selects {
		delete(out, "namespaceSelector")
	}
	maps.Copy(out, webhook)
	out["name"] = fmt.Sprintf("%v.${ns}.example.com", webhook["name"])
	delete(out, "does")
	delete(out, "for")
	lines, ok := webhook["for"].([]any)
	if !ok && webhook["for"] != nil {
		lines = []any{webhook["for"]}
	}
	var rules []any
	for _, line := range lines {
		operations, resource, _ := strings.Cut(fmt.Sprint(line), " ")
		parts := strings.SplitN(resource, "/", 3)
		if len(parts) != 3 {
			t.Fatalf("rule %q is not operations and group/version/resource", line)
		}
		rules = append(rules, map[string]any{
			"operations": strings.Split(operations, ","), "apiGroups": []string{strings.TrimPrefix(parts[0], "core")},
			"apiVersions": []string{parts[1]}, "resources": []string{parts[2]},
		})
	}
	if rules != nil {
		out["rules"] = rules
	}
	return out
}

// probe waits until every tier of both servers calls the webhooks of these kinds.
func (p *pair) probe(kinds []string) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), requestTimeout)
	defer cancel()
	labels := map[string]any{"probe": "${ns}"}
	requests := []Request{
		{Do: "POST /api/v1/namespaces/${ns}/configmaps?dryRun=All", Object: map[string]any{"metadata": map[string]any{"name": "probe", "labels": labels}}},
		{Do: "POST /apis/apiextensions.k8s.io/v1/customresourcedefinitions?dryRun=All", Object: map[string]any{
			"metadata": map[string]any{"name": "probes.${ns}.example.com", "labels": labels},
			"spec": map[string]any{
				"group": "${ns}.example.com", "scope": "Cluster", "names": map[string]any{"plural": "probes", "kind": "Probe"},
				"versions": []any{map[string]any{"name": "v1", "served": true, "storage": true, "schema": map[string]any{"openAPIV3Schema": map[string]any{"type": "object"}}}},
			},
		}},
		{Do: "POST /apis/apiregistration.k8s.io/v1/apiservices?dryRun=All", Object: map[string]any{
			"metadata": map[string]any{"name": "v9.${ns}.example.com", "labels": labels},
			"spec":     map[string]any{"group": "${ns}.example.com", "version": "v9", "groupPriorityMinimum": 1, "versionPriority": 1},
		}},
	}
	for i, vars := range []map[string]string{p.reference, p.tested} {
		for _, r := range requests {
			for seen := 0; seen < sightings*(*replicas); seen++ {
				a, err := p.peers[i].Send(ctx, r, vars)
				if err != nil {
					p.t.Fatalf("%s: webhooks are not asked: %v", r.Do, err)
				}
				warnings := fmt.Sprint(a.Header["Warning"])
				if slices.ContainsFunc(kinds, func(kind string) bool { return !strings.Contains(warnings, "probed by "+kind) }) {
					if a.Code >= 400 {
						p.t.Fatalf("%s: %s answers %d: %s", r.Do, p.peers[i].Name, a.Code, a.Body)
					}
					seen = -1
					time.Sleep(20 * time.Millisecond)
				}
			}
		}
	}
}
