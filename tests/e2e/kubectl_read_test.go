package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"triune.dev/tests/cli"
)

func TestKubectlGet(t *testing.T) {
	c := server(t)
	ns := newNamespace(t, c)
	k := newKubectl(t, c, ns)
	k.Stdin(web).Run("create", "-f", "-")
	for _, name := range []string{"c", "a", "b"} {
		k.Run("create", "configmap", name, "--from-literal=name="+name)
	}
	k.Run("label", "configmap", "a", "b", "picked=yes")

	t.Run("table", func(t *testing.T) {
		k := k.Of(t)
		k.Says([]string{"NAME   READY   UP-TO-DATE   AVAILABLE   AGE", "web    0/2     0            0"}, "get", "deployment")
		k.Says([]string{"CONTAINERS", "IMAGES", "SELECTOR", "registry.example/web:1", "app=web"}, "get", "deployment", "-o", "wide")
		k.Says([]string{"LABELS", "picked=yes"}, "get", "configmap", "--show-labels")
		k.Says([]string{"PICKED"}, "get", "configmap", "-L", "picked")
		k.Says([]string{"NAMESPACE", ns}, "get", "deployment", "-A")
		if got := k.Try("get", "secret"); got.Code != 0 || !strings.Contains(got.Stderr, "No resources found in "+ns) {
			t.Errorf("get of nothing: %+v", got)
		}
	})
	t.Run("output formats", func(t *testing.T) {
		k := k.Of(t)
		k.Says([]string{"apiVersion: apps/v1", "kind: Deployment", "  name: web", "status: {}"}, "get", "deployment/web", "-o", "yaml")
		var list struct {
			Kind  string
			Items []struct{ Metadata struct{ Name string } }
		}
		if err := json.Unmarshal([]byte(k.Run("get", "configmap", "-o", "json")), &list); err != nil || list.Kind != "List" || len(list.Items) != 3 || list.Items[0].Metadata.Name != "a" {
			t.Errorf("get -o json: %v %+v", err, list)
		}
		if got := k.Run("get", "configmap", "-o", "jsonpath={.items[*].metadata.name}"); got != "a b c" {
			t.Errorf("jsonpath: %q", got)
		}
		if got := k.Run("get", "configmap", "-o", "name"); got != "configmap/a\nconfigmap/b\nconfigmap/c\n" {
			t.Errorf("name: %q", got)
		}
		k.Says([]string{"IMAGE", "registry.example/web:1"}, "get", "deployment", "-o", "custom-columns=IMAGE:.spec.template.spec.containers[0].image")
		if got := k.Run("get", "configmap", "a", "-o", `go-template={{.data.name}}`); got != "a" {
			t.Errorf("go-template: %q", got)
		}
	})
	t.Run("selection", func(t *testing.T) {
		k := k.Of(t)
		for _, tc := range []struct{ args, want string }{
			{"-l picked=yes", "configmap/a\nconfigmap/b\n"},
			{"-l !picked", "configmap/c\n"},
			{"-l picked_in_(yes,no),picked!=no", "configmap/a\nconfigmap/b\n"},
			{"--field-selector=metadata.name=b", "configmap/b\n"},
			{"--field-selector=metadata.name!=b", "configmap/a\nconfigmap/c\n"},
			{"--chunk-size=1", "configmap/a\nconfigmap/b\nconfigmap/c\n"},
			{"--sort-by=.metadata.creationTimestamp -l picked=yes", ""},
		} {
			args := append([]string{"get", "configmap", "-o", "name"}, strings.Fields(tc.args)...)
			for i := range args {
				args[i] = strings.ReplaceAll(args[i], "_", " ")
			}
			if got := k.Run(args...); tc.want != "" && got != tc.want {
				t.Errorf("%s: got %q, want %q", tc.args, got, tc.want)
			}
		}
		k.Fails(`"data.name" is not a known field selector`, "get", "configmap", "--field-selector=data.name=a")
		k.Fails("NotFound", "get", "configmap", "none")
		k.Fails(`the server doesn't have a resource type "nothings"`, "get", "nothings")
	})
	t.Run("raw", func(t *testing.T) {
		k := k.Of(t)
		k.Says([]string{`"kind":"ConfigMapList"`}, "get", "--raw", "/api/v1/namespaces/"+ns+"/configmaps?limit=1")
		k.Says([]string{"ok"}, "get", "--raw", "/readyz")
		k.Says([]string{"[+]ping ok", "readyz check passed"}, "get", "--raw", "/readyz?verbose")
		k.Says([]string{`"major"`, `"gitVersion"`}, "get", "--raw", "/version")
		k.Fails("NotFound", "get", "--raw", "/nothing")
	})
	t.Run("watch", func(t *testing.T) {
		w := startWatch(t, k.Of(t), "get", "configmap", "--watch", "--output-watch-events")
		k := k.Of(t)
		w.expect("ADDED a", "ADDED b", "ADDED c")
		k.Run("create", "configmap", "d")
		w.expect("ADDED d")
		k.Run("label", "configmap", "d", "x=y")
		w.expect("MODIFIED d")
		k.Run("delete", "configmap", "d")
		w.expect("DELETED d")
	})
	t.Run("watch of one object as a table", func(t *testing.T) {
		w := startWatch(t, k.Of(t), "get", "deployment/web", "--watch")
		w.expect("web 0/2")
		k.Of(t).Run("scale", "deployment/web", "--replicas=4")
		w.expect("web 0/4")
	})
	t.Run("events", func(t *testing.T) {
		k := k.Of(t)
		k.Stdin("apiVersion: v1\nkind: Event\nmetadata: {name: e}\ninvolvedObject: {kind: Deployment, name: web, namespace: "+ns+", apiVersion: apps/v1}\nreason: Because\nmessage: it was time\ntype: Normal\n").Run("create", "-f", "-")
		k.Says([]string{"Because", "it was time"}, "get", "events", "--field-selector=involvedObject.name=web")
		k.Says([]string{"Because", "it was time"}, "events", "--for=deployment/web")
	})
}

// watched is a running kubectl that prints a line for every event.
type watched struct {
	t     *testing.T
	lines chan string
}

func startWatch(t *testing.T, k cli.Command, args ...string) watched {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	cmd := k.Cmd(ctx, args...)
	cmd.Cancel = func() error { return cmd.Process.Kill() }
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	w := watched{t: t, lines: make(chan string, 100)}
	go func() {
		defer close(w.lines)
		for s := bufio.NewScanner(stdout); s.Scan(); {
			w.lines <- strings.Join(strings.Fields(s.Text()), " ")
		}
	}()
	t.Cleanup(func() {
		cancel()
		_ = cmd.Wait() // it was killed
	})
	return w
}

// expect waits for lines that contain the given fragments, in this order.
func (w watched) expect(want ...string) {
	w.t.Helper()
	timeout := time.After(patience)
	for _, fragment := range want {
		for found := false; !found; {
			select {
			case line, open := <-w.lines:
				if !open {
					w.t.Fatalf("the watch ended before %q", fragment)
				}
				found = strings.Contains(line, fragment)
			case <-timeout:
				w.t.Fatalf("no line with %q within %v", fragment, patience)
			}
		}
	}
}

func TestKubectlDescribe(t *testing.T) {
	c := server(t)
	ns := newNamespace(t, c)
	k := newKubectl(t, c, ns)
	k.Stdin(web).Run("create", "-f", "-")
	k.Run("create", "service", "clusterip", "web", "--tcp=80:8080")
	k.Run("create", "secret", "generic", "s", "--from-literal=k=v")
	k.Run("create", "quota", "q", "--hard=configmaps=3")
	for what, want := range map[string][]string{
		"deployment/web":               {"Name:                   web", "Replicas:               2 desired", "RollingUpdateStrategy:  25% max unavailable, 25% max surge", "registry.example/web:1", "Events:"},
		"service/web":                  {"Type:", "ClusterIP", "TargetPort:", "8080/TCP"},
		"secret/s":                     {"Type:  Opaque", "k:  1 bytes"},
		"quota/q":                      {"Resource", "Used", "Hard"},
		"namespace/" + ns:              {"Status:       Active", "Resource Quotas"},
		"clusterrole/system:discovery": {"PolicyRule:", "[/api/*]"},
		"priorityclasses":              {"system-node-critical", "system-cluster-critical"},
		"flowschema/exempt":            {"Kind:         FlowSchema"},
		"servicecidr/kubernetes":       {"CIDRs:", "10.", "Ready  True"},
	} {
		t.Run(what, func(t *testing.T) { k.Of(t).Says(want, "describe", what) })
	}
}

func TestKubectlDiscovery(t *testing.T) {
	c := server(t)
	k := newKubectl(t, c, newNamespace(t, c))
	t.Run("api-versions", func(t *testing.T) {
		k.Of(t).Says([]string{"v1\n", "apps/v1\n", "apiextensions.k8s.io/v1\n", "apiregistration.k8s.io/v1\n", "autoscaling/v1\n", "autoscaling/v2\n", "resource.k8s.io/v1\n"}, "api-versions")
	})
	t.Run("api-resources", func(t *testing.T) {
		out := strings.Join(strings.Fields(k.Of(t).Run("api-resources", "-o", "wide")), " ")
		cli.ExpectFragments(t, "api-resources", out, []string{
			"configmaps cm v1 true ConfigMap create,delete,deletecollection,get,list,patch,update,watch",
			"deployments deploy apps/v1 true Deployment",
			"customresourcedefinitions crd,crds apiextensions.k8s.io/v1 false CustomResourceDefinition",
			"apiservices apiregistration.k8s.io/v1 false APIService",
		})
		k.Of(t).Says([]string{"pods"}, "api-resources", "--namespaced=true", "--verbs=list", "-o", "name")
		k.Of(t).Says([]string{"all"}, "api-resources", "--categories=all", "-o", "wide")
	})
	t.Run("explain", func(t *testing.T) {
		k := k.Of(t)
		k.Says([]string{"KIND:       Pod", "FIELD: containers <[]Container>", "DESCRIPTION:"}, "explain", "pod.spec.containers")
		k.Says([]string{"GROUP:      apps", "VERSION:    v1", "strategy"}, "explain", "deployment.spec")
		k.Says([]string{"preserveUnknownFields"}, "explain", "crd.spec")
		k.Says([]string{"insecureSkipTLSVerify"}, "explain", "apiservice.spec")
		k.Says([]string{"allocationMode"}, "explain", "resourceclaim", "--recursive")
		k.Fails("does not exist", "explain", "pod.spec.nothing")
		k.Says([]string{"KIND:     CronJob"}, "explain", "cronjob", "--output=plaintext-openapiv2")
	})
	t.Run("version and cluster-info", func(t *testing.T) {
		k := k.Of(t)
		k.Says([]string{"Server Version: v1.36"}, "version")
		k.Says([]string{"Kubernetes control plane"}, "cluster-info")
	})
}

func TestKubectlAuth(t *testing.T) {
	c := server(t)
	ns := newNamespace(t, c)
	k := newKubectl(t, c, ns)
	t.Run("can-i", func(t *testing.T) {
		k := k.Of(t)
		k.Says([]string{"yes"}, "auth", "can-i", "create", "pods")
		k.Says([]string{"yes"}, "auth", "can-i", "*", "*")
		if o := k.Try("auth", "can-i", "create", "pods", "--as=alice"); o.Code != 1 || !strings.Contains(o.Stdout, "no") {
			t.Errorf("can-i --as=alice: %+v", o)
		}
		k.Run("create", "role", "pods", "--verb=get,create", "--resource=pods,deployments.apps/scale")
		k.Run("create", "rolebinding", "alice", "--role=pods", "--user=alice")
		eventually(t, patience, func(context.Context) error {
			if o := k.Try("auth", "can-i", "create", "pods", "--as=alice"); o.Code != 0 {
				return fmt.Errorf("can-i create pods: %s%s", o.Stdout, o.Stderr)
			}
			return nil
		})
		k.Says([]string{"pods", "deployments.apps/scale", "[get create]"}, "auth", "can-i", "--list", "--as=alice")
		k.Says([]string{"yes"}, "auth", "can-i", "get", "deployments.apps", "--subresource=scale", "--as=alice")
		k.Says([]string{"yes"}, "auth", "can-i", "get", "/version", "--as=alice", "--as-group=system:authenticated")
	})
	t.Run("whoami", func(t *testing.T) {
		k := k.Of(t)
		k.Says([]string{"kubernetes-admin", "system:masters", "system:authenticated"}, "auth", "whoami")
		k.Says([]string{"bob", "devs"}, "auth", "whoami", "--as=bob", "--as-group=devs", "--as-uid=1")
	})
	t.Run("reconcile", func(t *testing.T) {
		k := k.Of(t)
		k.Stdin("apiVersion: rbac.authorization.k8s.io/v1\nkind: Role\nmetadata: {name: r, namespace: "+ns+"}\nrules:\n- {apiGroups: [\"\"], resources: [pods], verbs: [get]}\n").Says([]string{"reconciled"}, "auth", "reconcile", "-f", "-")
	})
	t.Run("users of tokens", func(t *testing.T) {
		user := newTokenUser(t, c, k.Of(t))
		k := k.Of(t).With("KUBECONFIG=/dev/null")
		flags := []string{"--server=" + c.URL, "--certificate-authority=" + c.PKI.ClusterCA.CertFile}
		k.Says([]string{user.name, user.group}, append([]string{"auth", "whoami", "--token=" + user.token}, flags...)...)
		k.Fails("must be logged in", append([]string{"auth", "whoami", "--token=no-such-token"}, flags...)...)
		k.Fails(`cannot list resource "secrets"`, append([]string{"get", "secrets", "--token=" + user.token, "-n", "kube-system"}, flags...)...)
	})
	t.Run("certificate", func(t *testing.T) {
		k := k.Of(t)
		csr := "apiVersion: certificates.k8s.io/v1\nkind: CertificateSigningRequest\nmetadata: {name: " + ns + "}\nspec:\n  signerName: triune.dev/suite\n  usages: [client auth]\n  request: " + certificateRequest(t) + "\n"
		k.Stdin(csr).Run("create", "-f", "-")
		k.Says([]string{"approved"}, "certificate", "approve", ns)
		k.Says([]string{"Approved"}, "get", "csr", ns)
		k.Run("delete", "csr", ns)
	})
}

func TestKubectlConfig(t *testing.T) {
	c := server(t)
	ns := newNamespace(t, c)
	user := newTokenUser(t, c, newKubectl(t, c, ns))
	config := writeFile(t, "config", "")
	k := newKubectl(t, c, "").With("KUBECONFIG=" + config)
	k.Run("config", "set-cluster", "here", "--server="+c.URL, "--certificate-authority="+c.PKI.ClusterCA.CertFile, "--embed-certs=true")
	k.Run("config", "set-credentials", "admin", "--client-certificate="+c.PKI.Admin.CertFile, "--client-key="+c.PKI.Admin.KeyFile, "--embed-certs=true")
	k.Run("config", "set-credentials", "alice", "--token="+user.token)
	k.Run("config", "set-context", "as-admin", "--cluster=here", "--user=admin", "--namespace="+ns)
	k.Run("config", "set-context", "as-alice", "--cluster=here", "--user=alice", "--namespace="+ns)
	k.Run("config", "use-context", "as-admin")
	k.Says([]string{"serviceaccount/default"}, "get", "serviceaccounts", "-o", "name")
	k.Run("config", "use-context", "as-alice")
	k.Says([]string{"as-alice"}, "config", "current-context")
	k.Fails("Forbidden", "get", "serviceaccounts")
	k.Says([]string{user.name}, "auth", "whoami")
	k.Says([]string{"as-admin", "as-alice"}, "config", "get-contexts")
	k.Says([]string{"here"}, "config", "get-clusters")
	k.Says([]string{"admin", "alice"}, "config", "get-users")
	k.Says([]string{"server: " + c.URL}, "config", "view", "--minify")
	k.Run("config", "rename-context", "as-alice", "alice")
	k.Run("config", "set", "contexts.alice.namespace", "default")
	k.Run("config", "unset", "contexts.alice.namespace")
	k.Run("config", "delete-context", "alice")
	k.Run("config", "delete-user", "alice")
	k.Run("config", "delete-cluster", "here")
}
