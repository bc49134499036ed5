package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const web = `apiVersion: apps/v1
kind: Deployment
metadata:
  name: web
  labels: {app: web}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata:
      labels: {app: web}
    spec:
      containers:
      - {name: main, image: "registry.example/web:1"}
`

func TestKubectlCreate(t *testing.T) {
	c := server(t)
	ns := newNamespace(t, c)
	k := newKubectl(t, c, ns)
	cert, key := c.PKI.Admin.CertFile, c.PKI.Admin.KeyFile
	for _, tc := range []struct {
		name string
		args string
		get  string // the object to read afterwards
		path string
		want string
	}{
		{"configmap", "configmap settings --from-literal=a=1 --from-literal=b=", "configmap/settings", "{.data}", `{"a":"1","b":""}`},
		{"secret generic", "secret generic login --from-literal=user=me", "secret/login", "{.type} {.data.user}", "Opaque bWU="},
		{"secret tls", "secret tls pair --cert=" + cert + " --key=" + key, "secret/pair", "{.type}", "kubernetes.io/tls"},
		{"secret docker-registry", "secret docker-registry pull --docker-server=r.example --docker-username=u --docker-password=p", "secret/pull", "{.type}", "kubernetes.io/dockerconfigjson"},
		{"deployment", "deployment api --image=registry.example/api:1 --replicas=2 --port=80", "deployment/api", "{.spec.replicas} {.spec.template.spec.containers[0].ports[0].containerPort} {.spec.strategy.type}", "2 80 RollingUpdate"},
		{"job", "job once --image=registry.example/job:1", "job/once", "{.spec.completions} {.spec.template.spec.restartPolicy}", "1 Never"},
		{"cronjob", "cronjob tick --image=registry.example/job:1 --schedule=*/5_*_*_*_*", "cronjob/tick", "{.spec.schedule} {.spec.concurrencyPolicy}", "*/5 * * * * Allow"},
		{"service clusterip", "service clusterip front --tcp=80:8080", "service/front", "{.spec.type} {.spec.ports[0].targetPort} {.spec.ipFamilies[0]}", "ClusterIP 8080 IPv4"},
		{"service nodeport", "service nodeport edge --tcp=80 --node-port=30123", "service/edge", "{.spec.ports[0].nodePort}", "30123"},
		{"service loadbalancer", "service loadbalancer lb --tcp=80", "service/lb", "{.spec.allocateLoadBalancerNodePorts}", "true"},
		{"service externalname", "service externalname out --external-name=out.example", "service/out", "{.spec.externalName}", "out.example"},
		{"serviceaccount", "serviceaccount robot", "serviceaccount/robot", "{.metadata.name}", "robot"},
		{"role", "role reader --verb=get,list --resource=pods,deployments.apps", "role/reader", "{.rules[*].apiGroups[0]}", " apps"},
		{"rolebinding", "rolebinding reader --role=reader --serviceaccount=" + ns + ":robot", "rolebinding/reader", "{.subjects[0].kind}", "ServiceAccount"},
		{"clusterrole", "clusterrole kubectl-create --verb=get --non-resource-url=/x", "clusterrole/kubectl-create", "{.rules[0].nonResourceURLs[0]}", "/x"},
		{"clusterrolebinding", "clusterrolebinding kubectl-create --clusterrole=kubectl-create --user=nobody", "clusterrolebinding/kubectl-create", "{.roleRef.name}", "kubectl-create"},
		{"ingress", "ingress in --rule=a.example/*=front:80", "ingress/in", "{.spec.rules[0].http.paths[0].pathType}", "Prefix"},
		{"poddisruptionbudget", "poddisruptionbudget pdb --selector=app=api --min-available=1", "pdb/pdb", "{.spec.minAvailable}", "1"},
		{"quota", "quota q --hard=pods=3", "quota/q", "{.spec.hard.pods}", "3"},
		{"priorityclass", "priorityclass kubectl-create --value=7", "priorityclass/kubectl-create", "{.value} {.preemptionPolicy}", "7 PreemptLowerPriority"},
		{"namespace", "namespace kubectl-create", "namespace/kubectl-create", "{.status.phase} {.metadata.labels.kubernetes\\.io/metadata\\.name}", "Active kubectl-create"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			k := k.Of(t)
			args := strings.Fields(tc.args)
			for i := range args {
				args[i] = strings.ReplaceAll(args[i], "_", " ")
			}
			k.Says([]string{" created"}, append([]string{"create"}, args...)...)
			if got := k.Run("get", tc.get, "-o", "jsonpath="+tc.path); got != tc.want {
				t.Errorf("%s is %q, want %q", tc.path, got, tc.want)
			}
			k.Fails("already ", append([]string{"create"}, args...)...)
			k.Says([]string{" deleted"}, "delete", tc.get, "--wait=false")
		})
	}
	t.Run("token", func(t *testing.T) {
		k := k.Of(t)
		k.Run("create", "serviceaccount", "caller")
		token := strings.TrimSpace(k.Run("create", "token", "caller", "--duration=10m"))
		caller := "system:serviceaccount:" + ns + ":caller"
		// The token's own identity, without the administrator's client certificate.
		bare := k.With("KUBECONFIG=/dev/null")
		bare.Says([]string{caller, "system:serviceaccounts:" + ns}, "auth", "whoami", "--server="+c.URL, "--certificate-authority="+c.PKI.ClusterCA.CertFile, "--token="+token)
		bare.Fails("Forbidden", "get", "pods", "--server="+c.URL, "--certificate-authority="+c.PKI.ClusterCA.CertFile, "--token="+token)
		bare.Fails("must be logged in", "get", "pods", "--server="+c.URL, "--certificate-authority="+c.PKI.ClusterCA.CertFile, "--token="+token[:len(token)-4]+"AAAA")
	})
	t.Run("dry run writes nothing", func(t *testing.T) {
		k := k.Of(t)
		k.Says([]string{"created (server dry run)"}, "create", "configmap", "dry", "--dry-run=server")
		k.Fails("NotFound", "get", "configmap", "dry")
	})
	t.Run("a file that is invalid", func(t *testing.T) {
		k := k.Of(t)
		k.Stdin("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: Not_A_Name}\n").Fails("Invalid value: \"Not_A_Name\"", "create", "-f", "-")
		k.Stdin("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\nspec: {}\n").Fails(`unknown field "spec"`, "create", "-f", "-")
		k.Stdin("apiVersion: v9\nkind: ConfigMap\nmetadata: {name: a}\n").Fails("no matches for kind", "create", "-f", "-")
	})
}

func TestKubectlChange(t *testing.T) {
	c := server(t)
	k := newKubectl(t, c, newNamespace(t, c))
	k.Stdin(web).Run("create", "-f", "-")
	field := func(t *testing.T, path, want string) {
		t.Helper()
		if got := k.Of(t).Run("get", "deployment/web", "-o", "jsonpath="+path); got != want {
			t.Errorf("%s is %q, want %q", path, got, want)
		}
	}
	t.Run("label", func(t *testing.T) {
		k := k.Of(t)
		k.Says([]string{"labeled"}, "label", "deployment/web", "tier=front")
		k.Fails("already has a value", "label", "deployment/web", "tier=back")
		k.Run("label", "deployment/web", "tier=back", "--overwrite")
		field(t, "{.metadata.labels.tier}", "back")
		k.Says([]string{"unlabeled"}, "label", "deployment/web", "tier-")
		field(t, "{.metadata.labels.tier}", "")
		k.Fails("Conflict", "label", "deployment/web", "tier=x", "--resource-version=1")
	})
	t.Run("annotate", func(t *testing.T) {
		k := k.Of(t)
		k.Says([]string{"annotated"}, "annotate", "deployment/web", "note=a b")
		field(t, "{.metadata.annotations.note}", "a b")
		k.Run("annotate", "deployment/web", "note-")
		field(t, "{.metadata.annotations.note}", "")
	})
	t.Run("patch", func(t *testing.T) {
		k := k.Of(t)
		k.Run("patch", "deployment/web", "--type=strategic", "-p", `{"spec":{"template":{"spec":{"containers":[{"name":"side","image":"registry.example/side:1"}]}}}}`)
		field(t, "{.spec.template.spec.containers[*].name}", "side main")
		k.Run("patch", "deployment/web", "--type=strategic", "-p", `{"spec":{"template":{"spec":{"containers":[{"name":"side","$patch":"delete"}]}}}}`)
		field(t, "{.spec.template.spec.containers[*].name}", "main")
		k.Run("patch", "deployment/web", "--type=merge", "-p", `{"spec":{"replicas":4},"metadata":{"labels":{"merged":"yes"}}}`)
		field(t, "{.spec.replicas} {.metadata.labels.merged} {.metadata.labels.app}", "4 yes web")
		k.Run("patch", "deployment/web", "--type=json", "-p", `[{"op":"test","path":"/spec/replicas","value":4},{"op":"replace","path":"/spec/replicas","value":3},{"op":"remove","path":"/metadata/labels/merged"}]`)
		field(t, "{.spec.replicas} {.metadata.labels.merged}", "3 ")
		k.Fails("the server rejected our request", "patch", "deployment/web", "--type=json", "-p", `[{"op":"test","path":"/spec/replicas","value":99}]`)
		k.Fails("field is immutable", "patch", "deployment/web", "--type=merge", "-p", `{"spec":{"selector":{"matchLabels":{"app":"other"}}}}`)
		k.Run("patch", "deployment/web", "--subresource=scale", "--type=merge", "-p", `{"spec":{"replicas":2}}`)
		field(t, "{.spec.replicas}", "2")
		k.Run("patch", "deployment/web", "--subresource=status", "--type=merge", "-p", `{"status":{"replicas":1},"spec":{"replicas":9}}`)
		field(t, "{.status.replicas} {.spec.replicas}", "1 2")
	})
	t.Run("scale", func(t *testing.T) {
		k := k.Of(t)
		k.Says([]string{"scaled"}, "scale", "deployment/web", "--replicas=5", "--current-replicas=2")
		field(t, "{.spec.replicas}", "5")
		k.Fails("Expected replicas to be 2, was 5", "scale", "deployment/web", "--replicas=6", "--current-replicas=2")
	})
	t.Run("set", func(t *testing.T) {
		k := k.Of(t)
		k.Says([]string{"image updated"}, "set", "image", "deployment/web", "main=registry.example/web:2")
		k.Says([]string{"env updated"}, "set", "env", "deployment/web", "LEVEL=debug")
		k.Says([]string{"resource requirements updated"}, "set", "resources", "deployment/web", "--limits=cpu=200m,memory=64Mi")
		k.Run("create", "serviceaccount", "runner")
		k.Says([]string{"serviceaccount updated"}, "set", "serviceaccount", "deployment/web", "runner")
		field(t, "{.spec.template.spec.containers[0].image} {.spec.template.spec.containers[0].env[0].value} {.spec.template.spec.containers[0].resources.limits.cpu} {.spec.template.spec.serviceAccountName}", "registry.example/web:2 debug 200m runner")
		k.Run("create", "service", "clusterip", "web", "--tcp=80")
		k.Says([]string{"selector updated"}, "set", "selector", "service/web", "app=web,tier=front")
		k.Run("create", "rolebinding", "view", "--clusterrole=view", "--user=a")
		k.Says([]string{"subjects updated"}, "set", "subject", "rolebinding/view", "--user=b", "--group=g")
	})
	t.Run("rollout", func(t *testing.T) {
		k := k.Of(t)
		k.Says([]string{"paused"}, "rollout", "pause", "deployment/web")
		field(t, "{.spec.paused}", "true")
		k.Says([]string{"resumed"}, "rollout", "resume", "deployment/web")
		k.Says([]string{"restarted"}, "rollout", "restart", "deployment/web")
		if got := k.Run("get", "deployment/web", "-o", `jsonpath={.spec.template.metadata.annotations}`); !strings.Contains(got, "restartedAt") {
			t.Errorf("annotations of the template: %s", got)
		}
	})
	t.Run("expose and autoscale", func(t *testing.T) {
		k := k.Of(t)
		k.Says([]string{"exposed"}, "expose", "deployment/web", "--name=exposed", "--port=80")
		k.Says([]string{"autoscaled"}, "autoscale", "deployment/web", "--min=1", "--max=3", "--cpu=50%")
	})
	t.Run("edit", func(t *testing.T) {
		k := k.Of(t)
		editor := filepath.Join(t.TempDir(), "editor")
		if err := os.WriteFile(editor, []byte("#!/bin/sh\nsed -i 's/replicas: 5/replicas: 7/' \"$1\"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		k.With("KUBE_EDITOR="+editor).Says([]string{"edited"}, "edit", "deployment/web")
		field(t, "{.spec.replicas}", "7")
	})
	t.Run("replace", func(t *testing.T) {
		k := k.Of(t)
		k.Stdin(web).Says([]string{"replaced"}, "replace", "-f", "-")
		field(t, "{.spec.replicas} {.spec.template.spec.containers[0].image}", "2 registry.example/web:1")
		stale := strings.Replace(web, "name: web\n", "name: web\n  resourceVersion: \"1\"\n", 1)
		k.Stdin(stale).Fails("the object has been modified", "replace", "-f", "-")
		k.Stdin(web).Says([]string{"replaced"}, "replace", "--force", "-f", "-")
	})
	t.Run("delete", func(t *testing.T) {
		k := k.Of(t)
		k.Fails("NotFound", "delete", "deployment/none")
		k.Run("delete", "deployment/none", "--ignore-not-found")
		k.Says([]string{`"web" deleted`}, "delete", "deployment", "-l", "app=web")
		k.Run("create", "configmap", "a")
		k.Run("create", "configmap", "b")
		k.Says([]string{`"a" deleted`, `"b" deleted`}, "delete", "configmap", "a", "b")
		k.Says([]string{" deleted"}, "delete", "service,rolebinding,hpa", "--all")
	})
	t.Run("wait", func(t *testing.T) {
		k := k.Of(t)
		k.Run("create", "configmap", "waited")
		k.Says([]string{"condition met"}, "wait", "--for=jsonpath={.metadata.name}=waited", "configmap/waited", "--timeout=10s")
		k.Fails("timed out", "wait", "--for=delete", "configmap/waited", "--timeout=1s")
		k.Run("delete", "configmap", "waited", "--wait=false")
		k.Run("wait", "--for=delete", "configmap/waited", "--timeout=10s")
		k.Says([]string{"condition met"}, "wait", "--for=create", "serviceaccount/default", "--timeout=10s")
	})
	t.Run("pods without a kubelet", func(t *testing.T) {
		k := k.Of(t)
		k.Says([]string{"created"}, "run", "one", "--image=registry.example/one:1", "--restart=Never", "--overrides", `{"spec":{"nodeSelector":{"triune.dev/nowhere":"true"}}}`)
		k.Says([]string{"Pending"}, "get", "pod", "one")
		k.Says([]string{"labeled"}, "label", "pod", "one", "x=y")
		k.Fails("", "debug", "one", "--image=registry.example/debug:1", "--target=none", "--attach=true", "--request-timeout=1s")
		k.Says([]string{"deleted"}, "delete", "pod", "one", "--now")
	})
}
