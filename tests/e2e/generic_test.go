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
	"triune.dev/tests/cli"
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

const bootstrapTokens = cluster.BootstrapManifest + `apiVersion: v1
kind: Secret
metadata: {name: bootstrap-token-expire, namespace: kube-system}
type: bootstrap.kubernetes.io/token
stringData: {token-id: expire, token-secret: 0123456789abcdef, expiration: "2020-01-01T00:00:00Z"}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: cluster-info, namespace: kube-public}
data: {kubeconfig: "apiVersion: v1\nkind: Config\n"}
`

// TestGenericControllers checks what each controller inside triune does. None of it needs a
// kube-controller-manager.
func TestGenericControllers(t *testing.T) {
	full(t)
	c := startGeneric(t, cluster.Config{PKI: newPKI(t)})
	k := newKubectl(t, c, "default")
	// becomes waits until kubectl prints what check accepts.
	becomes := func(t *testing.T, k cli.Command, check func(string) bool, args ...string) string {
		t.Helper()
		var out string
		eventually(t, goal, func(context.Context) error {
			o := k.Of(t).Try(args...)
			if out = o.Stdout; !check(out) {
				return fmt.Errorf("%s%s", o.Stdout, o.Stderr)
			}
			return nil
		})
		return out
	}
	something := func(out string) bool { return out != "" }
	becomes(t, k, something, "get", "configmap/kube-root-ca.crt", "-o", "name")
	becomes(t, k, something, "get", "serviceaccount/default", "-o", "name")

	t.Run("a node joins with a bootstrap token", func(t *testing.T) {
		k := k.Of(t)
		k.Args = nil // the objects are in several namespaces
		k.Stdin(bootstrapTokens).Run("apply", "-f", "-")
		request, key := nodeRequest(t, "joined")
		joining := k.With("KUBECONFIG=/dev/null")
		connection := []string{"--server=" + c.URL, "--certificate-authority=" + c.PKI.ClusterCA.CertFile}
		joining.Stdin("apiVersion: certificates.k8s.io/v1\nkind: CertificateSigningRequest\nmetadata: {name: joined}\nspec:\n" +
			"  signerName: kubernetes.io/kube-apiserver-client-kubelet\n  usages: [digital signature, client auth]\n  request: " + request + "\n").
			Run(append(connection, "--token="+cluster.BootstrapToken, "create", "-f", "-")...)
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
		joining.Stdin("apiVersion: v1\nkind: Node\nmetadata: {name: joined}\n").Run(append(connection, "create", "-f", "-")...)
		joining.Says([]string{"system:node:joined", "system:nodes"}, append(connection, "auth", "whoami")...)
		k.Run("delete", "node", "joined")
	})
	t.Run("cluster-info is signed", func(t *testing.T) {
		becomes(t, k, something, "get", "configmap/cluster-info", "-n", "kube-public", "-o", `jsonpath={.data.jws-kubeconfig-abcdef}`)
	})
	t.Run("an expired token is removed", func(t *testing.T) {
		becomes(t, k, func(out string) bool { return !strings.Contains(out, "expire") }, "get", "secrets", "-n", "kube-system", "-o", "name")
	})
	t.Run("a ServiceAccount's token in a Secret", func(t *testing.T) {
		k.Of(t).Stdin("apiVersion: v1\nkind: Secret\nmetadata: {name: token, annotations: {kubernetes.io/service-account.name: default}}\ntype: kubernetes.io/service-account-token\n").Run("create", "-f", "-")
		encoded := becomes(t, k, something, "get", "secret/token", "-o", "jsonpath={.data.token}")
		token, err := base64.StdEncoding.DecodeString(encoded)
		if err != nil {
			t.Fatal(err)
		}
		k.Of(t).With("KUBECONFIG=/dev/null").Says([]string{"system:serviceaccount:default:default"},
			"auth", "whoami", "--token="+string(token), "--server="+c.URL, "--certificate-authority="+c.PKI.ClusterCA.CertFile)
	})
	t.Run("a quota counts", func(t *testing.T) {
		k.Of(t).Run("create", "quota", "few", "--hard=configmaps=9,count/leases.coordination.k8s.io=9")
		k.Of(t).Run("create", "configmap", "counted")
		becomes(t, k, func(out string) bool { return out == "2 0" }, // kube-root-ca.crt is the other
			"get", "quota/few", "-o", `jsonpath={.status.used.configmaps} {.status.used.count/leases\.coordination\.k8s\.io}`)
		k.Of(t).Run("delete", "configmap", "counted")
		becomes(t, k, func(out string) bool { return out == "1" }, "get", "quota/few", "-o", "jsonpath={.status.used.configmaps}")
	})
	t.Run("a finished Job is removed", func(t *testing.T) {
		k := k.Of(t)
		k.Stdin("apiVersion: batch/v1\nkind: Job\nmetadata: {name: brief}\nspec: {ttlSecondsAfterFinished: 1, template: {spec: {restartPolicy: Never, containers: [{name: a, image: a}]}}}\n").Run("create", "-f", "-")
		now := time.Now().UTC().Format(time.RFC3339)
		k.Run("patch", "job/brief", "--subresource=status", "--type=merge", "-p", fmt.Sprintf(
			`{"status":{"startTime":%[1]q,"completionTime":%[1]q,"succeeded":1,"conditions":[{"type":"SuccessCriteriaMet","status":"True","lastTransitionTime":%[1]q},{"type":"Complete","status":"True","lastTransitionTime":%[1]q}]}}`, now))
		k.Run("wait", "--for=delete", "job/brief", "--timeout=60s")
	})
	t.Run("a namespace goes", func(t *testing.T) {
		k := k.Of(t)
		k.Run("create", "namespace", "going")
		k.Run("create", "configmap", "a", "-n", "going")
		k.Run("delete", "namespace", "going", "--timeout=60s")
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
		return k.Run("get", "lease/triune-controllers", "-n", "kube-system", "-o", "jsonpath={.spec.holderIdentity}")
	}
	leader := ""
	eventually(t, goal, func(context.Context) error {
		if o := k.Try("get", "lease/triune-controllers", "-n", "kube-system"); o.Code != 0 {
			return fmt.Errorf("%s", o.Stderr)
		}
		leader = holder()
		return nil
	})
	second := startGeneric(t, cluster.Config{PKI: keys, EtcdURL: first.EtcdURL})
	k = newKubectl(t, second, "default")
	collect := func(namespace string) {
		t.Helper()
		k.Run("create", "namespace", namespace)
		eventually(t, goal, func(context.Context) error {
			if o := k.Try("get", "serviceaccount/default", "-n", namespace); o.Code != 0 {
				return fmt.Errorf("%s", o.Stderr)
			}
			return nil
		})
		k.Run("delete", "namespace", namespace, "--timeout=60s")
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
