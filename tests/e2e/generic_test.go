package e2e

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"triune.dev/shared/process/pki"
	"triune.dev/tests/cluster"
)

// startGeneric starts a triune that runs all controllers of --controllers=all-generic.
func startGeneric(t *testing.T, config cluster.Config) *cluster.Cluster {
	t.Helper()
	if cluster.Topology(*target) != cluster.Triune {
		t.Skip("only triune runs controllers")
	}
	config.Topology = cluster.Triune
	config.Flags = map[cluster.Tier][]string{cluster.Tier(cluster.Triune): {
		"--controllers=all-generic",
		"--cluster-signing-cert-file=" + config.PKI.ClusterCA.CertFile, "--cluster-signing-key-file=" + config.PKI.ClusterCA.KeyFile,
	}}
	return cluster.Run(t, config)
}

func newPKI(t *testing.T) *pki.PKI {
	t.Helper()
	keys, err := pki.Ensure(t.TempDir(), pki.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return keys
}

const bootstrapTokens = `apiVersion: v1
kind: Secret
metadata: {name: bootstrap-token-abcdef, namespace: kube-system}
type: bootstrap.kubernetes.io/token
stringData: {token-id: abcdef, token-secret: 0123456789abcdef, usage-bootstrap-authentication: "true", usage-bootstrap-signing: "true", auth-extra-groups: "system:bootstrappers:joining"}
---
apiVersion: v1
kind: Secret
metadata: {name: bootstrap-token-expire, namespace: kube-system}
type: bootstrap.kubernetes.io/token
stringData: {token-id: expire, token-secret: 0123456789abcdef, expiration: "2020-01-01T00:00:00Z"}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: cluster-info, namespace: kube-public}
data: {kubeconfig: "apiVersion: v1\nkind: Config\n"}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: join}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: "system:node-bootstrapper"}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: Group, name: "system:bootstrappers:joining"}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: approve}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: "system:certificates.k8s.io:certificatesigningrequests:nodeclient"}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: Group, name: "system:bootstrappers:joining"}]
`

// TestGenericControllers checks what each controller inside triune does. None of it needs a
// kube-controller-manager.
func TestGenericControllers(t *testing.T) {
	full(t)
	c := startGeneric(t, cluster.Config{PKI: newPKI(t)})
	k := newKubectl(t, c, "default")
	// becomes waits until kubectl prints what check accepts.
	becomes := func(t *testing.T, k command, check func(string) bool, args ...string) string {
		t.Helper()
		var out string
		eventually(t, goal, func(context.Context) error {
			o := k.of(t).try(args...)
			if out = o.stdout; !check(out) {
				return fmt.Errorf("%s%s", o.stdout, o.stderr)
			}
			return nil
		})
		return out
	}
	something := func(out string) bool { return out != "" }
	becomes(t, k, something, "get", "configmap/kube-root-ca.crt", "-o", "name")
	becomes(t, k, something, "get", "serviceaccount/default", "-o", "name")

	t.Run("a node joins with a bootstrap token", func(t *testing.T) {
		k := k.of(t)
		k.args = nil // the objects are in several namespaces
		k.stdin(bootstrapTokens).run("apply", "-f", "-")
		request, key := nodeRequest(t, "joined")
		joining := k.with("KUBECONFIG=/dev/null")
		connection := []string{"--server=" + c.URL, "--certificate-authority=" + c.PKI.ClusterCA.CertFile}
		joining.stdin("apiVersion: certificates.k8s.io/v1\nkind: CertificateSigningRequest\nmetadata: {name: joined}\nspec:\n" +
			"  signerName: kubernetes.io/kube-apiserver-client-kubelet\n  usages: [digital signature, client auth]\n  request: " + request + "\n").
			run(append(connection, "--token=abcdef.0123456789abcdef", "create", "-f", "-")...)
		signed := becomes(t, k, something, "get", "csr/joined", "-o", "jsonpath={.status.certificate}")
		certificate, err := base64.StdEncoding.DecodeString(signed)
		if err != nil {
			t.Fatal(err)
		}
		files := t.TempDir()
		certFile, keyFile := filepath.Join(files, "node.crt"), filepath.Join(files, "node.key")
		for file, content := range map[string][]byte{certFile: certificate, keyFile: key} {
			if err := os.WriteFile(file, content, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		connection = append(connection, "--client-certificate="+certFile, "--client-key="+keyFile)
		joining.stdin("apiVersion: v1\nkind: Node\nmetadata: {name: joined}\n").run(append(connection, "create", "-f", "-")...)
		joining.says([]string{"system:node:joined", "system:nodes"}, append(connection, "auth", "whoami")...)
		k.run("delete", "node", "joined")
	})
	t.Run("cluster-info is signed", func(t *testing.T) {
		becomes(t, k, something, "get", "configmap/cluster-info", "-n", "kube-public", "-o", `jsonpath={.data.jws-kubeconfig-abcdef}`)
	})
	t.Run("an expired token is removed", func(t *testing.T) {
		becomes(t, k, func(out string) bool { return !strings.Contains(out, "expire") }, "get", "secrets", "-n", "kube-system", "-o", "name")
	})
	t.Run("a ServiceAccount's token in a Secret", func(t *testing.T) {
		k.of(t).stdin("apiVersion: v1\nkind: Secret\nmetadata: {name: token, annotations: {kubernetes.io/service-account.name: default}}\ntype: kubernetes.io/service-account-token\n").run("create", "-f", "-")
		encoded := becomes(t, k, something, "get", "secret/token", "-o", "jsonpath={.data.token}")
		token, err := base64.StdEncoding.DecodeString(encoded)
		if err != nil {
			t.Fatal(err)
		}
		k.of(t).with("KUBECONFIG=/dev/null").says([]string{"system:serviceaccount:default:default"},
			"auth", "whoami", "--token="+string(token), "--server="+c.URL, "--certificate-authority="+c.PKI.ClusterCA.CertFile)
	})
	t.Run("a quota counts", func(t *testing.T) {
		k.of(t).run("create", "quota", "few", "--hard=configmaps=9,count/leases.coordination.k8s.io=9")
		k.of(t).run("create", "configmap", "counted")
		becomes(t, k, func(out string) bool { return out == "2 0" }, // kube-root-ca.crt is the other
			"get", "quota/few", "-o", `jsonpath={.status.used.configmaps} {.status.used.count/leases\.coordination\.k8s\.io}`)
		k.of(t).run("delete", "configmap", "counted")
		becomes(t, k, func(out string) bool { return out == "1" }, "get", "quota/few", "-o", "jsonpath={.status.used.configmaps}")
	})
	t.Run("a finished Job is removed", func(t *testing.T) {
		k := k.of(t)
		k.stdin("apiVersion: batch/v1\nkind: Job\nmetadata: {name: brief}\nspec: {ttlSecondsAfterFinished: 1, template: {spec: {restartPolicy: Never, containers: [{name: a, image: a}]}}}\n").run("create", "-f", "-")
		now := time.Now().UTC().Format(time.RFC3339)
		k.run("patch", "job/brief", "--subresource=status", "--type=merge", "-p", fmt.Sprintf(
			`{"status":{"startTime":%[1]q,"completionTime":%[1]q,"succeeded":1,"conditions":[{"type":"SuccessCriteriaMet","status":"True","lastTransitionTime":%[1]q},{"type":"Complete","status":"True","lastTransitionTime":%[1]q}]}}`, now))
		k.run("wait", "--for=delete", "job/brief", "--timeout=60s")
	})
	t.Run("a namespace goes", func(t *testing.T) {
		k := k.of(t)
		k.run("create", "namespace", "going")
		k.run("create", "configmap", "a", "-n", "going")
		k.run("delete", "namespace", "going", "--timeout=60s")
	})
}

// nodeRequest returns the encoded request for the client certificate of a node, and its key
// in PEM.
func nodeRequest(t *testing.T, node string) (request string, key []byte) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	subject := pkix.Name{CommonName: "system:node:" + node, Organization: []string{"system:nodes"}}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: subject}, private)
	if err != nil {
		t.Fatal(err)
	}
	encoded, err := x509.MarshalECPrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})),
		pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: encoded})
}

// TestOneRunsTheControllers starts two triunes on one etcd. One of them runs the controllers;
// when it is killed the other one takes over, and when it ends orderly the Lease is free at once.
func TestOneRunsTheControllers(t *testing.T) {
	full(t)
	keys := newPKI(t)
	first := startGeneric(t, cluster.Config{PKI: keys, ExternalEtcd: true})
	k := newKubectl(t, first, "default")
	holder := func() string {
		return k.run("get", "lease/triune-controllers", "-n", "kube-system", "-o", "jsonpath={.spec.holderIdentity}")
	}
	leader := ""
	eventually(t, goal, func(context.Context) error {
		if o := k.try("get", "lease/triune-controllers", "-n", "kube-system"); o.code != 0 {
			return fmt.Errorf("%s", o.stderr)
		}
		leader = holder()
		return nil
	})
	second := startGeneric(t, cluster.Config{PKI: keys, EtcdURL: first.EtcdURL})
	k = newKubectl(t, second, "default")
	collect := func(namespace string) {
		t.Helper()
		k.run("create", "namespace", namespace)
		eventually(t, goal, func(context.Context) error {
			if o := k.try("get", "serviceaccount/default", "-n", namespace); o.code != 0 {
				return fmt.Errorf("%s", o.stderr)
			}
			return nil
		})
		k.run("delete", "namespace", namespace, "--timeout=60s")
	}
	collect("one")
	if got := holder(); got != leader {
		t.Errorf("%s runs the controllers beside %s", got, leader)
	}
	triune := cluster.Tier(cluster.Triune)
	first.Kill(triune, 0)
	eventually(t, goal, func(context.Context) error {
		if got := holder(); got == "" || got == leader {
			return fmt.Errorf("the holder is %q", got)
		}
		return nil
	})
	collect("two")
	if err := first.StartReplica(t.Context(), triune, 0); err != nil {
		t.Fatal(err)
	}
	k = newKubectl(t, first, "default")
	leader = holder()
	if err := second.Process(triune, 0).Stop(); err != nil {
		t.Fatal(err)
	}
	eventually(t, 10*time.Second, func(context.Context) error { // less than the Lease's 15 s
		if got := holder(); got == "" || got == leader {
			return fmt.Errorf("the holder is %q", got)
		}
		return nil
	})
	collect("three")
}
