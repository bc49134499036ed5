package e2e

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"
)

// TestSampleAPIServer registers k8s.io/sample-apiserver, unmodified, as a remote APIService
// and works with its Flunders through the aggregator. The extension server asks Triune who
// its callers are (by the front-proxy configuration) and what they may do
// (SubjectAccessReview).
func TestSampleAPIServer(t *testing.T) {
	full(t)
	c := server(t)
	ns := newNamespace(t, c)
	k := newKubectl(t, c, ns)
	etcd, err := c.StartEtcd(t.Context(), "sample-etcd")
	if err != nil {
		t.Fatal(err)
	}
	sample, port, err := c.StartSampleServer(t.Context(), etcd)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		sample.Kill()
		if t.Failed() {
			t.Logf("sample-apiserver:\n%s", sample.Log(8<<10))
		}
	})
	k.Stdin(apiService(ns, "wardle.example.com", "v1alpha1", port)).Run("apply", "-f", "-")
	t.Cleanup(func() { k.Run("delete", "apiservice", "v1alpha1.wardle.example.com", "--ignore-not-found") })
	k.Run("wait", "--for=condition=Available", "apiservice/v1alpha1.wardle.example.com", "--timeout=60s")
	// Available says that one aggregator has reached the server. As in kube-apiserver, each
	// aggregator learns by itself what the server serves.
	for i, head := 0, c.ServingTiers()[0]; c.Process(head, i) != nil; i++ {
		eventually(t, patience, func(context.Context) error {
			o := k.Try("api-resources", "--api-group=wardle.example.com", "--cached=false", "--server="+c.ReplicaURL(head, i))
			if o.Code != 0 || !strings.Contains(o.Stdout, "flunders") {
				return fmt.Errorf("discovery of %s %d: %+v", head, i, o)
			}
			return nil
		})
	}

	flunder := "apiVersion: wardle.example.com/v1alpha1\nkind: Flunder\nmetadata: {name: %s, labels: {made-by: suite}}\nspec: {referenceType: Flunder, reference: other}\n"
	t.Run("create and list", func(t *testing.T) {
		k := k.Of(t)
		k.Stdin(fmt.Sprintf(flunder, "one")).Says([]string{"flunder.wardle.example.com/one created"}, "apply", "--validate=false", "-f", "-")
		k.Says([]string{"one"}, "get", "flunders")
		k.Says([]string{"reference: other"}, "get", "flunder", "one", "-o", "yaml")
		k.Run("label", "flunder", "one", "a=b")
		k.Run("patch", "flunder", "one", "--type=merge", "-p", `{"metadata":{"annotations":{"x":"y"}}}`)
		if got := k.Run("get", "flunders", "-l", "a=b", "-o", "name"); got != "flunder.wardle.example.com/one\n" {
			t.Errorf("by label: %q", got)
		}
		k.Says([]string{"wardle.example.com/v1alpha1", "flunders", "fischers"}, "api-resources", "--api-group=wardle.example.com")
		k.Says([]string{"FlunderList"}, "get", "--raw", "/apis/wardle.example.com/v1alpha1/namespaces/"+ns+"/flunders")
	})
	t.Run("watch", func(t *testing.T) {
		w := startWatch(t, k.Of(t), "get", "flunders", "--watch", "--output-watch-events")
		w.expect("ADDED one")
		k.Of(t).Stdin(fmt.Sprintf(flunder, "two")).Run("apply", "--validate=false", "-f", "-")
		w.expect("ADDED two")
		k.Of(t).Run("delete", "flunder", "two")
		w.expect("DELETED two")
	})
	t.Run("its own admission", func(t *testing.T) {
		k := k.Of(t)
		k.Stdin("apiVersion: wardle.example.com/v1alpha1\nkind: Fischer\nmetadata: {name: ban}\ndisallowedFlunders: [banned]\n").Run("apply", "--validate=false", "-f", "-")
		eventually(t, patience, func(context.Context) error {
			o := k.Stdin(fmt.Sprintf(flunder, "banned")).Try("create", "--validate=false", "-f", "-")
			if o.Code == 0 {
				k.Run("delete", "flunder", "banned")
			}
			if !strings.Contains(o.Stderr, "this name may not be used, please change the resource name") {
				return fmt.Errorf("create of a banned flunder: %+v", o)
			}
			return nil
		})
	})
	t.Run("explain through merged OpenAPI", func(t *testing.T) {
		k := k.Of(t)
		eventually(t, 2*patience, func(context.Context) error {
			o := k.Try("explain", "flunder.spec")
			if o.Code != 0 || !strings.Contains(o.Stdout, "referenceType") {
				return fmt.Errorf("explain: %+v", o)
			}
			return nil
		})
	})
	t.Run("delegated authorization", func(t *testing.T) {
		k := k.Of(t)
		k.Fails(`User "alice" cannot list resource "flunders" in API group "wardle.example.com"`, "get", "flunders", "--as=alice")
		k.Run("create", "role", "flunders", "--verb=get,list", "--resource=flunders.wardle.example.com")
		k.Run("create", "rolebinding", "flunders", "--role=flunders", "--user=alice", "--group=testers")
		eventually(t, 2*patience, func(context.Context) error { // both servers cache a denial
			if o := k.Try("get", "flunders", "--as=alice"); o.Code != 0 || !strings.Contains(o.Stdout, "one") {
				return fmt.Errorf("get as alice: %+v", o)
			}
			return nil
		})
		bare := k.With("KUBECONFIG=/dev/null")
		bare.Says([]string{"one"}, "get", "flunders", "--token=alice-token", "--server="+c.URL, "--certificate-authority="+c.PKI.ClusterCA.CertFile)
		bare.Fails("Forbidden", "delete", "flunder", "one", "--token=alice-token", "--server="+c.URL, "--certificate-authority="+c.PKI.ClusterCA.CertFile)
	})
	t.Run("while it is down", func(t *testing.T) {
		k := k.Of(t)
		sample.Kill()
		k.Run("wait", "--for=condition=Available=false", "apiservice/v1alpha1.wardle.example.com", "--timeout=90s")
		o := k.Try("get", "--raw", "/apis/wardle.example.com/v1alpha1/namespaces/"+ns+"/flunders")
		if o.Code == 0 || !strings.Contains(o.Stderr, "unable to handle the request") {
			t.Errorf("get: %+v", o)
		}
		k.Says([]string{"serviceaccount/default"}, "get", "serviceaccounts", "-o", "name")
		if err := sample.Start(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
		k.Run("wait", "--for=condition=Available", "apiservice/v1alpha1.wardle.example.com", "--timeout=90s")
		eventually(t, patience, func(context.Context) error {
			if o := k.Try("get", "flunders"); o.Code != 0 || !strings.Contains(o.Stdout, "one") {
				return fmt.Errorf("get: %+v", o)
			}
			return nil
		})
	})
	t.Run("after the APIService is deleted", func(t *testing.T) {
		k := k.Of(t)
		k.Run("delete", "apiservice", "v1alpha1.wardle.example.com")
		eventually(t, patience, func(context.Context) error {
			if o := k.Try("get", "--raw", "/apis/wardle.example.com/v1alpha1"); !strings.Contains(o.Stderr, "NotFound") {
				return fmt.Errorf("discovery: %+v", o)
			}
			return nil
		})
	})
}

// apiService returns the manifest of an APIService for a server on this machine.
func apiService(ns, group, version string, port int) string {
	return serviceOf(ns, port) + `---
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: ` + version + `.` + group + `}
spec:
  group: ` + group + `
  version: ` + version + `
  groupPriorityMinimum: 1000
  versionPriority: 15
  insecureSkipTLSVerify: true
  service: {name: remote, namespace: ` + ns + `, port: ` + strconv.Itoa(port) + `}
`
}

// serviceOf returns the manifest of a Service that leads to a port of this machine: by name
// or, if the servers have an egress proxy and resolve endpoints themselves, by an address
// that only this proxy reaches.
func serviceOf(ns string, port int) string {
	if shared.production == nil {
		return `apiVersion: v1
kind: Service
metadata: {name: remote, namespace: ` + ns + `}
spec: {type: ExternalName, externalName: localhost}
`
	}
	return fmt.Sprintf(`apiVersion: v1
kind: Service
metadata: {name: remote, namespace: %[1]s}
spec: {ports: [{name: https, port: %[2]d}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: remote-1, namespace: %[1]s, labels: {kubernetes.io/service-name: remote}}
addressType: IPv4
endpoints: [{addresses: [%[3]s], conditions: {ready: true}}]
ports: [{name: https, port: %[2]d, protocol: TCP}]
`, ns, port, beyondProxy)
}
