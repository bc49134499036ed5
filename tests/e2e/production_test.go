package e2e

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"triune.dev/tests/cluster"
	"triune.dev/tests/otlp"
)

// production holds what production clusters configure beyond kubeadm's manifest, which all
// servers of the suite have: files, and the servers that an API server then talks to. With
// -flags it exists for the whole run.
type production struct {
	dir       string
	issuer    *issuer
	collector *otlp.Collector
	webhook   *auditWebhook
	proxy     *connectProxy
}

// flagSets maps each value of -flags to the flags that it adds to the common ones.
var flagSets = map[string][]string{
	// Priority and fairness, which is the default.
	"production": nil,
	// A limit of requests in flight instead, and kube-apiserver's HTTP/2 server.
	"production-max-in-flight": {"--enable-priority-and-fairness=false", "--max-requests-inflight=400", "--max-mutating-requests-inflight=200", "--http2-server=go"},
}

// newProduction writes the files into dir and starts the servers.
func newProduction(dir string) (*production, error) {
	p := &production{dir: dir, webhook: newAuditWebhook()}
	var err error
	if p.proxy, err = newConnectProxy(p.file("egress-ca.crt"), p.file("egress.crt"), p.file("egress.key")); err != nil {
		return nil, err
	}
	if p.issuer, err = newIssuer(p.file("issuer.crt")); err != nil {
		return nil, err
	}
	if p.collector, err = otlp.Start(); err != nil {
		return nil, err
	}
	files := map[string]string{
		"audit-policy.yaml": `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: None
  nonResourceURLs: [/healthz*, /livez*, /readyz*, /metrics]
- level: Metadata
  resources: [{group: "", resources: [secrets, configmaps, serviceaccounts/token]}]
- level: RequestResponse
`,
		"audit-webhook.kubeconfig": `apiVersion: v1
kind: Config
clusters: [{name: sink, cluster: {server: ` + p.webhook.URL + `}}]
contexts: [{name: sink, context: {cluster: sink}}]
current-context: sink
`,
		"encryption.yaml": encryption("one"),
		"egress.yaml": `apiVersion: apiserver.k8s.io/v1beta1
kind: EgressSelectorConfiguration
egressSelections:
- name: cluster
  connection:
    proxyProtocol: HTTPConnect
    transport:
      tcp:
        url: ` + p.proxy.URL + `
        tlsConfig: {caBundle: ` + p.file("egress-ca.crt") + `, clientCert: ` + p.file("egress.crt") + `, clientKey: ` + p.file("egress.key") + `}
- name: controlplane
  connection: {proxyProtocol: Direct}
- name: etcd
  connection: {proxyProtocol: Direct}
`,
		"tracing.yaml": `apiVersion: apiserver.config.k8s.io/v1beta1
kind: TracingConfiguration
endpoint: ` + p.collector.Address + `
samplingRatePerMillion: 100000
`,
		"admission.yaml": `apiVersion: apiserver.config.k8s.io/v1
kind: AdmissionConfiguration
plugins:
- name: PodSecurity
  configuration:
    apiVersion: pod-security.admission.config.k8s.io/v1
    kind: PodSecurityConfiguration
    defaults: {enforce: privileged, warn: restricted, warn-version: latest}
`,
	}
	for name, content := range files {
		if err := os.WriteFile(p.file(name), []byte(content), 0o600); err != nil {
			return nil, err
		}
	}
	return p, nil
}

func (p *production) file(name string) string { return filepath.Join(p.dir, name) }

// encryption returns a configuration with these keys; the first one encrypts.
func encryption(keys ...string) string {
	var list strings.Builder
	for _, key := range keys {
		sum := sha256.Sum256([]byte(key))
		fmt.Fprintf(&list, "      - {name: %s, secret: %s}\n", key, base64.StdEncoding.EncodeToString(sum[:]))
	}
	return `apiVersion: apiserver.config.k8s.io/v1
kind: EncryptionConfiguration
resources:
- resources: [secrets]
  providers:
  - secretbox:
      keys:
` + list.String() + `  - identity: {}
`
}

// configure adds the flags of a set to every tier that serves.
func (p *production) configure(config *cluster.Config, set string) error {
	if config.Flags == nil {
		config.Flags = map[cluster.Tier][]string{}
	}
	for _, tier := range (&cluster.Cluster{Config: *config}).ServingTiers() {
		// All replicas append to the same file, so it must exist before they start.
		if err := os.WriteFile(p.auditLog(tier), nil, 0o600); err != nil {
			return err
		}
		flags := append(slices.Clone(flagSets[set]),
			"--audit-policy-file="+p.file("audit-policy.yaml"),
			"--audit-log-path="+p.auditLog(tier),
			"--audit-log-maxage=1", "--audit-log-maxbackup=2", "--audit-log-maxsize=100",
			"--audit-webhook-config-file="+p.file("audit-webhook.kubeconfig"),
			"--audit-webhook-batch-max-wait=1s",
			"--encryption-provider-config="+p.file("encryption.yaml"),
			"--encryption-provider-config-automatic-reload=true",
			"--egress-selector-config-file="+p.file("egress.yaml"),
			"--tracing-config-file="+p.file("tracing.yaml"),
			"--admission-control-config-file="+p.file("admission.yaml"),
			"--enable-aggregator-routing=true",
			"--goaway-chance=0.001",
			"--profiling=true", "--contention-profiling=true",
		)
		if tier != cluster.Aggregator && tier != cluster.Extensions {
			flags = append(flags,
				"--oidc-issuer-url="+p.issuer.URL, "--oidc-client-id=triune", "--oidc-ca-file="+p.issuer.caFile,
				"--oidc-username-claim=sub", "--oidc-username-prefix=oidc:", "--oidc-groups-claim=groups", "--oidc-groups-prefix=oidc:",
				"--kubelet-preferred-address-types=InternalIP,ExternalIP,Hostname",
				"--event-ttl=30m")
		}
		config.Flags[tier] = append(config.Flags[tier], flags...)
	}
	return nil
}

// TestProduction checks that each flag of a production cluster takes effect, whichever tier
// serves a request.
func TestProduction(t *testing.T) {
	needs(t)
	if *flagSet == "" {
		t.Skip("the servers of this run do not have the flags: -flags=production")
	}
	c, p := server(t), shared.production
	k := newKubectl(t, c, newNamespace(t, c))
	k.Stdin(`apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: wheels.production.triune.dev}
spec:
  group: production.triune.dev
  scope: Namespaced
  names: {plural: wheels, singular: wheel, kind: Wheel}
  versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, description: It turns., x-kubernetes-preserve-unknown-fields: true}}}]
`).Run("apply", "-f", "-")
	t.Cleanup(func() { k.Run("delete", "crd", "wheels.production.triune.dev") })
	k.Run("wait", "--for=condition=Established", "crd/wheels.production.triune.dev", "--timeout=30s")

	t.Run("discovery and openapi", func(t *testing.T) {
		k := k.Of(t)
		eventually(t, patience, func(context.Context) error {
			if out := k.Run("api-resources", "--api-group=production.triune.dev"); !strings.Contains(out, "wheels") {
				return fmt.Errorf("api-resources: %s", out)
			}
			return nil
		})
		k.Run("get", "crd")
		eventually(t, patience, func(context.Context) error {
			if out := k.Try("explain", "wheels"); !strings.Contains(out.Stdout, "It turns.") {
				return fmt.Errorf("explain: %s%s", out.Stdout, out.Stderr)
			}
			return nil
		})
	})
	t.Run("audit", func(t *testing.T) { checkAudit(t, c, p) })
	t.Run("audit of the server itself", func(t *testing.T) { checkOwnAudit(t, c, p) })
	t.Run("oidc", func(t *testing.T) { checkOIDC(t, c, p) })
	t.Run("tracing", func(t *testing.T) {
		eventually(t, patience, func(context.Context) error {
			clientset(t, c).CoreV1().Namespaces().List(t.Context(), metav1.ListOptions{})
			if len(p.collector.Spans()) == 0 {
				return fmt.Errorf("no span has come")
			}
			return nil
		})
	})
	t.Run("encryption", func(t *testing.T) {
		full(t) // files are reloaded once a minute
		checkRotation(t, c, p)
	})
	t.Run("pod security", func(t *testing.T) {
		config := restConfig(t, c)
		warned := &warnings{}
		config.WarningHandler = warned
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: "root"},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "c"}}},
		}
		dry := metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}
		if _, err := kubernetes.NewForConfigOrDie(config).CoreV1().Pods(newNamespace(t, c)).Create(t.Context(), pod, dry); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(strings.Join(warned.texts, "\n"), `would violate PodSecurity "restricted:latest"`) {
			t.Errorf("warnings %q", warned.texts)
		}
	})
	t.Run("profiling", func(t *testing.T) {
		raw(t, restConfig(t, c), "/debug/pprof/goroutine?debug=1")
	})
	t.Run("egress", func(t *testing.T) { checkEgress(t, c, p) })
}

// warnings collects the warnings of servers.
type warnings struct{ texts []string }

// HandleWarningHeader implements [rest.WarningHandler].
func (w *warnings) HandleWarningHeader(_ int, _ string, text string) { w.texts = append(w.texts, text) }

// raw returns the body of a GET.
func raw(t *testing.T, config *rest.Config, path string) string {
	t.Helper()
	body, err := kubernetes.NewForConfigOrDie(config).RESTClient().Get().RequestURI(path).DoRaw(t.Context())
	if err != nil {
		t.Fatalf("GET %s: %v: %s", path, err, body)
	}
	return string(body)
}

// checkOIDC checks that every tier authenticates a token of the issuer.
func checkOIDC(t *testing.T, c *cluster.Cluster, p *production) {
	config := rest.AnonymousClientConfig(restConfig(t, c))
	for path, says := range map[string]string{
		"/api/v1/namespaces/default/configmaps":                    "oidc:carol",
		"/apis/production.triune.dev/v1/namespaces/default/wheels": "oidc:carol",
		"/apis/apiregistration.k8s.io/v1/apiservices":              "oidc:carol",
	} {
		config.BearerToken = p.issuer.token(t, "carol", "wheelwrights")
		eventually(t, patience, func(context.Context) error {
			body, err := kubernetes.NewForConfigOrDie(config).RESTClient().Get().RequestURI(path).DoRaw(t.Context())
			if err == nil || !strings.Contains(string(body), `User \"`+says+`\" cannot list resource`) {
				return fmt.Errorf("%w: %s", err, body)
			}
			return nil
		})
	}
	config.BearerToken = p.issuer.token(t, "carol", "wheelwrights") + "x"
	if _, err := kubernetes.NewForConfigOrDie(config).CoreV1().Namespaces().List(t.Context(), metav1.ListOptions{}); err == nil || !strings.Contains(err.Error(), "Unauthorized") {
		t.Errorf("a token with a broken signature: %v", err)
	}
}

// checkEgress checks that an extension API server, at an address of its Service, is reached
// through the proxy of the cluster network.
func checkEgress(t *testing.T, c *cluster.Cluster, p *production) {
	remote := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, `{"kind":"ThingList","apiVersion":"egress.triune.dev/v1","items":[]}`)
	}))
	t.Cleanup(remote.Close)
	namespace := newNamespace(t, c)
	k := newKubectl(t, c, namespace)
	port := remote.Listener.Addr().(*net.TCPAddr).Port
	k.Stdin(apiService(namespace, "egress.triune.dev", "v1", port)).Run("apply", "-f", "-")
	t.Cleanup(func() { k.Run("delete", "apiservice", "v1.egress.triune.dev") })
	eventually(t, patience, func(context.Context) error {
		if out := k.Try("get", "--raw", "/apis/egress.triune.dev/v1/things"); out.Code != 0 {
			return fmt.Errorf("%s", out.Stderr)
		}
		return nil
	})
}
