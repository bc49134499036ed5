package e2e

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"k8s.io/client-go/rest"

	"triune.dev/tests/cluster"
)

const judged = `apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: cases.court.triune.dev}
spec:
  group: court.triune.dev
  scope: Namespaced
  names: {plural: cases, singular: case, kind: Case}
  versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}]
`

// TestTiersDecideAlike checks that the decisions of core's authorizers apply in every tier,
// with the same reason. Only core can ask ABAC.
func TestTiersDecideAlike(t *testing.T) {
	needs(t)
	policy := writeFile(t, "policy.jsonl", `{"apiVersion":"abac.authorization.kubernetes.io/v1beta1","kind":"Policy",`+
		`"spec":{"user":"alice","apiGroup":"*","resource":"*","namespace":"*","readonly":true}}`+"\n")
	config := targetConfig()
	builtin := cluster.Tier(*target)
	if config.Topology == cluster.Tiers {
		builtin = cluster.Core
	}
	// Node and RBAC are the defaults.
	config.Flags = map[cluster.Tier][]string{builtin: {"--authorization-mode=ABAC", "--authorization-policy-file=" + policy}}
	c := cluster.Run(t, config)
	k := newKubectl(t, c, "default")
	k.Stdin(judged).Run("apply", "-f", "-")
	k.Run("wait", "--for=condition=Established", "crd/cases.court.triune.dev", "--timeout=30s")
	eventually(t, patience, func(context.Context) error {
		if out := k.Try("get", "cases.court.triune.dev"); out.Code != 0 {
			return fmt.Errorf("%s", out.Stderr)
		}
		return nil
	})

	reasons := map[string][]string{}
	for _, resource := range []string{
		"/api/v1/namespaces/default/configmaps",
		"/apis/court.triune.dev/v1/namespaces/default/cases",
		"/apis/apiregistration.k8s.io/v1/apiservices",
	} {
		for _, who := range []string{"alice", "bob"} {
			for method, body := range map[string]string{http.MethodGet: "", http.MethodPost: "{}"} {
				code, answer := asToken(t, c, who+"-token", method, resource, body)
				want := http.StatusForbidden
				if who == "alice" && method == http.MethodGet {
					want = http.StatusOK
				}
				if code != want {
					t.Errorf("%s %s %s: %d, want %d: %s", who, method, resource, code, want, answer)
				}
				if code == http.StatusForbidden {
					reasons[who+" "+method] = append(reasons[who+" "+method], reasonOf(answer))
				}
			}
		}
	}
	for what, got := range reasons {
		for _, reason := range got {
			if reason != got[0] || reason == "" {
				t.Errorf("%s: reasons %q", what, got)
				break
			}
		}
	}
}

// reasonOf returns the authorizers' reason from the end of the message of a refusal.
func reasonOf(status string) string {
	_, after, _ := strings.Cut(status, `"message":"`)
	message, _, _ := strings.Cut(after, `","reason"`)
	for _, scope := range []string{`at the cluster scope`, `in the namespace \"default\"`} {
		if _, reason, ok := strings.Cut(message, scope); ok {
			return reason
		}
	}
	return message
}

// asToken sends a request with a bearer token.
func asToken(t *testing.T, c *cluster.Cluster, token, method, path, body string) (code int, answer string) {
	t.Helper()
	config := rest.AnonymousClientConfig(restConfig(t, c))
	config.BearerToken = token
	return send(t, config, method, c.URL+path, body)
}

func send(t *testing.T, config *rest.Config, method, url, body string) (code int, answer string) {
	t.Helper()
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	code, answer, err = sendBy(t.Context(), client, method, url, body)
	if err != nil {
		t.Fatal(err)
	}
	return code, answer
}

func sendBy(ctx context.Context, client *http.Client, method, url, body string) (code int, answer string, err error) {
	req, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		return 0, "", err
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := client.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer res.Body.Close()
	content, err := io.ReadAll(res.Body)
	return res.StatusCode, string(content), err
}

// TestContradiction checks that a tier whose flags contradict core's does not become ready
// and names both values, and that it becomes ready once they agree.
func TestContradiction(t *testing.T) {
	needs(t)
	if cluster.Topology(*target) != cluster.Tiers {
		return // one process has one set of flags
	}
	config := targetConfig()
	config.Replicas = 1
	c := cluster.Run(t, config)
	admin := restConfig(t, c)
	for _, tier := range []cluster.Tier{cluster.Aggregator, cluster.Extensions} {
		t.Run(string(tier), func(t *testing.T) {
			p := c.Process(tier, 0)
			if err := p.Stop(); err != nil {
				t.Fatal(err)
			}
			args := p.Args
			p.Args = append(args[:len(args):len(args)], "--anonymous-auth=false")
			if err := p.Start(t.Context(), nil); err != nil {
				t.Fatal(err)
			}
			url := c.ReplicaURL(tier, 0)
			line := fmt.Sprintf("%s has --anonymous-auth=false, core has --anonymous-auth=true", tier)
			eventually(t, patience, func(context.Context) error {
				return says(t, admin, url+"/readyz/settings", http.StatusInternalServerError, line)
			})
			if err := says(t, admin, url+"/readyz", http.StatusInternalServerError, "[-]settings failed"); err != nil {
				t.Error(err)
			}
			if err := p.Stop(); err != nil {
				t.Fatal(err)
			}
			p.Args = args
			if err := c.StartReplica(t.Context(), tier, 0); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// TestAnonymousIsCores checks that the tier in front does not let in anonymous requests
// that core's flags refuse. The tiers get the same file, but not at the same moment.
func TestAnonymousIsCores(t *testing.T) {
	needs(t)
	config := targetConfig()
	config.Replicas = 1
	c := cluster.Run(t, config)
	builtin := cluster.Tier(*target)
	if config.Topology == cluster.Tiers {
		builtin = cluster.Core
	}
	nobody := rest.AnonymousClientConfig(restConfig(t, c))
	url := c.URL + "/api/v1/namespaces"
	if err := says(t, nobody, url, http.StatusForbidden, "system:anonymous"); err != nil {
		t.Error(err)
	}
	// The probes of this suite stay anonymous.
	file := writeFile(t, "authentication.yaml", "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthenticationConfiguration\n"+
		"anonymous: {enabled: true, conditions: [{path: /readyz}]}\n")
	p := c.Process(builtin, 0)
	p.Args = append(p.Args, "--authentication-config="+file)
	if err := c.Restart(t.Context(), builtin, 0); err != nil {
		t.Fatal(err)
	}
	eventually(t, patience, func(context.Context) error {
		return says(t, nobody, url, http.StatusUnauthorized, "Unauthorized")
	})
	if err := says(t, restConfig(t, c), url, http.StatusOK, "kube-system"); err != nil {
		t.Error(err)
	}
}

// says returns an error unless the answer has the code and contains want. A server that
// does not listen yet has no answer.
func says(t *testing.T, config *rest.Config, url string, code int, want string) error {
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	res, err := client.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	content, err := io.ReadAll(res.Body)
	if err != nil {
		return err
	}
	if res.StatusCode != code || !strings.Contains(string(content), want) {
		return fmt.Errorf("%s: %d %s", url, res.StatusCode, content)
	}
	return nil
}
