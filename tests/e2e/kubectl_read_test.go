package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"
)

func TestKubectlGet(t *testing.T) {
	c := server(t)
	ns := newNamespace(t, c)
	k := newKubectl(t, c, ns)
	k.stdin(web).run("create", "-f", "-")
	for _, name := range []string{"c", "a", "b"} {
		k.run("create", "configmap", name, "--from-literal=name="+name)
	}
	k.run("label", "configmap", "a", "b", "picked=yes")

	t.Run("table", func(t *testing.T) {
		k := k.of(t)
		k.says([]string{"NAME   READY   UP-TO-DATE   AVAILABLE   AGE", "web    0/2     0            0"}, "get", "deployment")
		k.says([]string{"CONTAINERS", "IMAGES", "SELECTOR", "registry.example/web:1", "app=web"}, "get", "deployment", "-o", "wide")
		k.says([]string{"LABELS", "picked=yes"}, "get", "configmap", "--show-labels")
		k.says([]string{"PICKED"}, "get", "configmap", "-L", "picked")
		k.says([]string{"NAMESPACE", ns}, "get", "deployment", "-A")
		if got := k.try("get", "secret"); got.code != 0 || !strings.Contains(got.stderr, "No resources found in "+ns) {
			t.Errorf("get of nothing: %+v", got)
		}
	})
	t.Run("output formats", func(t *testing.T) {
		k := k.of(t)
		k.says([]string{"apiVersion: apps/v1", "kind: Deployment", "  name: web", "status: {}"}, "get", "deployment/web", "-o", "yaml")
		var list struct {
			Kind  string
			Items []struct{ Metadata struct{ Name string } }
		}
		if err := json.Unmarshal([]byte(k.run("get", "configmap", "-o", "json")), &list); err != nil || list.Kind != "List" || len(list.Items) != 3 || list.Items[0].Metadata.Name != "a" {
			t.Errorf("get -o json: %v %+v", err, list)
		}
		if got := k.run("get", "configmap", "-o", "jsonpath={.items[*].metadata.name}"); got != "a b c" {
			t.Errorf("jsonpath: %q", got)
		}
		if got := k.run("get", "configmap", "-o", "name"); got != "configmap/a\nconfigmap/b\nconfigmap/c\n" {
			t.Errorf("name: %q", got)
		}
		k.says([]string{"IMAGE", "registry.example/web:1"}, "get", "deployment", "-o", "custom-columns=IMAGE:.spec.template.spec.containers[0].image")
		if got := k.run("get", "configmap", "a", "-o", `go-template={{.data.name}}`); got != "a" {
			t.Errorf("go-template: %q", got)
		}
	})
	t.Run("selection", func(t *testing.T) {
		k := k.of(t)
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
			if got := k.run(args...); tc.want != "" && got != tc.want {
				t.Errorf("%s: got %q, want %q", tc.args, got, tc.want)
			}
		}
		k.fails(`"data.name" is not a known field selector`, "get", "configmap", "--field-selector=data.name=a")
		k.fails("NotFound", "get", "configmap", "none")
		k.fails(`the server doesn't have a resource type "nothings"`, "get", "nothings")
	})
	t.Run("raw", func(t *testing.T) {
		k := k.of(t)
		k.says([]string{`"kind":"ConfigMapList"`}, "get", "--raw", "/api/v1/namespaces/"+ns+"/configmaps?limit=1")
		k.says([]string{"ok"}, "get", "--raw", "/readyz")
		k.says([]string{"[+]ping ok", "readyz check passed"}, "get", "--raw", "/readyz?verbose")
		k.says([]string{`"major"`, `"gitVersion"`}, "get", "--raw", "/version")
		k.fails("NotFound", "get", "--raw", "/nothing")
	})
	t.Run("watch", func(t *testing.T) {
		w := startWatch(t, k.of(t), "get", "configmap", "--watch", "--output-watch-events")
		k := k.of(t)
		w.expect("ADDED a", "ADDED b", "ADDED c")
		k.run("create", "configmap", "d")
		w.expect("ADDED d")
		k.run("label", "configmap", "d", "x=y")
		w.expect("MODIFIED d")
		k.run("delete", "configmap", "d")
		w.expect("DELETED d")
	})
	t.Run("watch of one object as a table", func(t *testing.T) {
		w := startWatch(t, k.of(t), "get", "deployment/web", "--watch")
		w.expect("web 0/2")
		k.of(t).run("scale", "deployment/web", "--replicas=4")
		w.expect("web 0/4")
	})
	t.Run("events", func(t *testing.T) {
		k := k.of(t)
		k.stdin("apiVersion: v1\nkind: Event\nmetadata: {name: e}\ninvolvedObject: {kind: Deployment, name: web, namespace: "+ns+", apiVersion: apps/v1}\nreason: Because\nmessage: it was time\ntype: Normal\n").run("create", "-f", "-")
		k.says([]string{"Because", "it was time"}, "get", "events", "--field-selector=involvedObject.name=web")
		k.says([]string{"Because", "it was time"}, "events", "--for=deployment/web")
	})
}

// watched is a running kubectl that prints a line for every event.
type watched struct {
	t     *testing.T
	lines chan string
}

func startWatch(t *testing.T, k command, args ...string) watched {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	cmd := k.cmd(ctx, args...)
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
	k.stdin(web).run("create", "-f", "-")
	k.run("create", "service", "clusterip", "web", "--tcp=80:8080")
	k.run("create", "secret", "generic", "s", "--from-literal=k=v")
	k.run("create", "quota", "q", "--hard=configmaps=3")
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
		t.Run(what, func(t *testing.T) { k.of(t).says(want, "describe", what) })
	}
}

func TestKubectlDiscovery(t *testing.T) {
	c := server(t)
	k := newKubectl(t, c, newNamespace(t, c))
	t.Run("api-versions", func(t *testing.T) {
		k.of(t).says([]string{"v1\n", "apps/v1\n", "apiextensions.k8s.io/v1\n", "apiregistration.k8s.io/v1\n", "autoscaling/v1\n", "autoscaling/v2\n", "resource.k8s.io/v1\n"}, "api-versions")
	})
	t.Run("api-resources", func(t *testing.T) {
		out := strings.Join(strings.Fields(k.of(t).run("api-resources", "-o", "wide")), " ")
		expectFragments(t, "api-resources", out, []string{
			"configmaps cm v1 true ConfigMap create,delete,deletecollection,get,list,patch,update,watch",
			"deployments deploy apps/v1 true Deployment",
			"customresourcedefinitions crd,crds apiextensions.k8s.io/v1 false CustomResourceDefinition",
			"apiservices apiregistration.k8s.io/v1 false APIService",
		})
		k.of(t).says([]string{"pods"}, "api-resources", "--namespaced=true", "--verbs=list", "-o", "name")
		k.of(t).says([]string{"all"}, "api-resources", "--categories=all", "-o", "wide")
	})
	t.Run("explain", func(t *testing.T) {
		k := k.of(t)
		k.says([]string{"KIND:       Pod", "FIELD: containers <[]Container>", "DESCRIPTION:"}, "explain", "pod.spec.containers")
		k.says([]string{"GROUP:      apps", "VERSION:    v1", "strategy"}, "explain", "deployment.spec")
		k.says([]string{"preserveUnknownFields"}, "explain", "crd.spec")
		k.says([]string{"insecureSkipTLSVerify"}, "explain", "apiservice.spec")
		k.says([]string{"allocationMode"}, "explain", "resourceclaim", "--recursive")
		k.fails("does not exist", "explain", "pod.spec.nothing")
		k.says([]string{"KIND:     CronJob"}, "explain", "cronjob", "--output=plaintext-openapiv2")
	})
	t.Run("version and cluster-info", func(t *testing.T) {
		k := k.of(t)
		k.says([]string{"Server Version: v1.36"}, "version")
		k.says([]string{"Kubernetes control plane"}, "cluster-info")
	})
}

func TestKubectlAuth(t *testing.T) {
	c := server(t)
	ns := newNamespace(t, c)
	k := newKubectl(t, c, ns)
	t.Run("can-i", func(t *testing.T) {
		k := k.of(t)
		k.says([]string{"yes"}, "auth", "can-i", "create", "pods")
		k.says([]string{"yes"}, "auth", "can-i", "*", "*")
		if o := k.try("auth", "can-i", "create", "pods", "--as=alice"); o.code != 1 || !strings.Contains(o.stdout, "no") {
			t.Errorf("can-i --as=alice: %+v", o)
		}
		k.run("create", "role", "pods", "--verb=get,create", "--resource=pods,deployments.apps/scale")
		k.run("create", "rolebinding", "alice", "--role=pods", "--user=alice")
		eventually(t, patience, func(context.Context) error {
			if o := k.try("auth", "can-i", "create", "pods", "--as=alice"); o.code != 0 {
				return fmt.Errorf("can-i create pods: %s%s", o.stdout, o.stderr)
			}
			return nil
		})
		k.says([]string{"pods", "deployments.apps/scale", "[get create]"}, "auth", "can-i", "--list", "--as=alice")
		k.says([]string{"yes"}, "auth", "can-i", "get", "deployments.apps", "--subresource=scale", "--as=alice")
		k.says([]string{"yes"}, "auth", "can-i", "get", "/version", "--as=alice", "--as-group=system:authenticated")
	})
	t.Run("whoami", func(t *testing.T) {
		k := k.of(t)
		k.says([]string{"kubernetes-admin", "system:masters", "system:authenticated"}, "auth", "whoami")
		k.says([]string{"bob", "devs"}, "auth", "whoami", "--as=bob", "--as-group=devs", "--as-uid=1")
	})
	t.Run("reconcile", func(t *testing.T) {
		k := k.of(t)
		k.stdin("apiVersion: rbac.authorization.k8s.io/v1\nkind: Role\nmetadata: {name: r, namespace: "+ns+"}\nrules:\n- {apiGroups: [\"\"], resources: [pods], verbs: [get]}\n").says([]string{"reconciled"}, "auth", "reconcile", "-f", "-")
	})
	t.Run("users of tokens", func(t *testing.T) {
		user := newTokenUser(t, c, k.of(t))
		k := k.of(t).with("KUBECONFIG=/dev/null")
		flags := []string{"--server=" + c.URL, "--certificate-authority=" + c.PKI.ClusterCA.CertFile}
		k.says([]string{user.name, user.group}, append([]string{"auth", "whoami", "--token=" + user.token}, flags...)...)
		k.fails("must be logged in", append([]string{"auth", "whoami", "--token=no-such-token"}, flags...)...)
		k.fails(`cannot list resource "secrets"`, append([]string{"get", "secrets", "--token=" + user.token, "-n", "kube-system"}, flags...)...)
	})
	t.Run("certificate", func(t *testing.T) {
		k := k.of(t)
		csr := "apiVersion: certificates.k8s.io/v1\nkind: CertificateSigningRequest\nmetadata: {name: " + ns + "}\nspec:\n  signerName: triune.dev/suite\n  usages: [client auth]\n  request: " + certificateRequest(t) + "\n"
		k.stdin(csr).run("create", "-f", "-")
		k.says([]string{"approved"}, "certificate", "approve", ns)
		k.says([]string{"Approved"}, "get", "csr", ns)
		k.run("delete", "csr", ns)
	})
}

func TestKubectlConfig(t *testing.T) {
	c := server(t)
	ns := newNamespace(t, c)
	user := newTokenUser(t, c, newKubectl(t, c, ns))
	config := writeFile(t, "config", "")
	k := newKubectl(t, c, "").with("KUBECONFIG=" + config)
	k.run("config", "set-cluster", "here", "--server="+c.URL, "--certificate-authority="+c.PKI.ClusterCA.CertFile, "--embed-certs=true")
	k.run("config", "set-credentials", "admin", "--client-certificate="+c.PKI.Admin.CertFile, "--client-key="+c.PKI.Admin.KeyFile, "--embed-certs=true")
	k.run("config", "set-credentials", "alice", "--token="+user.token)
	k.run("config", "set-context", "as-admin", "--cluster=here", "--user=admin", "--namespace="+ns)
	k.run("config", "set-context", "as-alice", "--cluster=here", "--user=alice", "--namespace="+ns)
	k.run("config", "use-context", "as-admin")
	k.says([]string{"serviceaccount/default"}, "get", "serviceaccounts", "-o", "name")
	k.run("config", "use-context", "as-alice")
	k.says([]string{"as-alice"}, "config", "current-context")
	k.fails("Forbidden", "get", "serviceaccounts")
	k.says([]string{user.name}, "auth", "whoami")
	k.says([]string{"as-admin", "as-alice"}, "config", "get-contexts")
	k.says([]string{"here"}, "config", "get-clusters")
	k.says([]string{"admin", "alice"}, "config", "get-users")
	k.says([]string{"server: " + c.URL}, "config", "view", "--minify")
	k.run("config", "rename-context", "as-alice", "alice")
	k.run("config", "set", "contexts.alice.namespace", "default")
	k.run("config", "unset", "contexts.alice.namespace")
	k.run("config", "delete-context", "alice")
	k.run("config", "delete-user", "alice")
	k.run("config", "delete-cluster", "here")
}
