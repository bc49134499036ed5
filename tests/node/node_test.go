package node

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"triune.dev/shared/process/pki"
	"triune.dev/tests/cluster"
	"triune.dev/tests/tools"
)

var (
	target   = flag.String("target", "triune", "the API server: triune, tiers or kube-apiserver")
	replicas = flag.Int("replicas", 1, "how many replicas each of the tiers has")
)

const (
	token = "abcdef.0123456789abcdef"
	// patience bounds each wait for kubelet, controllers or a container.
	patience = 2 * time.Minute
)

// joining lets a node join with the token, and approves its client certificate.
const joining = `apiVersion: v1
kind: Secret
metadata: {name: bootstrap-token-abcdef, namespace: kube-system}
type: bootstrap.kubernetes.io/token
stringData: {token-id: abcdef, token-secret: 0123456789abcdef, usage-bootstrap-authentication: "true", auth-extra-groups: "system:bootstrappers:nodes"}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: join}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: "system:node-bootstrapper"}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: Group, name: "system:bootstrappers:nodes"}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: approve}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: "system:certificates.k8s.io:certificatesigningrequests:nodeclient"}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: Group, name: "system:bootstrappers:nodes"}]
`

const web = `apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - name: web
        image: ` + ToolsImage + `
        imagePullPolicy: Never
        command: [sh, -c, "echo hello from $NAME > /www/index.html; echo started; exec httpd -f -p 8080 -h /www"]
        env: [{name: NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}]
        ports: [{containerPort: 8080}]
        readinessProbe: {httpGet: {path: /, port: 8080}, periodSeconds: 1}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: web}, ports: [{port: 80, targetPort: 8080}]}
`

// TestNode joins a node to a cluster and lets it work.
func TestNode(t *testing.T) {
	if lacks := Missing(); lacks != "" {
		if testing.Short() {
			t.Skip(lacks)
		}
		t.Fatal(lacks)
	}
	keys, err := pki.Ensure(t.TempDir(), PKIOptions())
	if err != nil {
		t.Fatal(err)
	}
	config := cluster.Config{Topology: cluster.Topology(*target), Replicas: *replicas, PKI: keys, Flags: map[cluster.Tier][]string{}}
	for _, tier := range (&cluster.Cluster{Config: config}).ServingTiers() {
		config.Flags[tier] = ServerFlags(tier, keys)
	}
	c := cluster.Run(t, config)
	for name, start := range map[string]func(context.Context) (*cluster.Process, error){
		"kube-controller-manager": c.StartControllerManager, "kube-scheduler": c.StartScheduler,
	} {
		if _, err := start(t.Context()); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	k := newKubectl(t, c)
	k.stdin(joining).run("apply", "-f", "-")
	n, err := Start(t.Context(), c, token)
	if n != nil {
		t.Cleanup(func() {
			if t.Failed() {
				t.Log(n.Logs(8 << 10))
			}
			if err := n.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	k.eventually("Ready", "get", "node", n.Name, "-o", `jsonpath={.status.conditions[?(@.status=="True")].type}`)
	t.Logf("the node is ready after %v", time.Since(began).Round(100*time.Millisecond))

	k.stdin(web).run("apply", "-f", "-")
	k.run("rollout", "status", "deployment/web", "--timeout=120s")
	t.Logf("pods run after %v", time.Since(began).Round(100*time.Millisecond))
	pod := strings.Fields(k.run("get", "pods", "-l", "app=web", "-o", "jsonpath={.items[*].metadata.name}"))[0]
	t.Run("logs", func(t *testing.T) {
		if got := k.of(t).run("logs", pod); got != "started\n" {
			t.Errorf("logs are %q", got)
		}
	})
	t.Run("exec", func(t *testing.T) {
		k := k.of(t)
		if got := k.run("exec", pod, "--", "cat", "/www/index.html"); got != "hello from "+pod+"\n" {
			t.Errorf("it says %q", got)
		}
		if got := k.stdin("over there").run("exec", "-i", pod, "--", "cat"); got != "over there" {
			t.Errorf("cat says %q", got)
		}
		if o := k.try("exec", pod, "--", "sh", "-c", "exit 7"); o.code != 7 {
			t.Errorf("exit status %d: %s", o.code, o.stderr)
		}
	})
	t.Run("proxies", func(t *testing.T) {
		k := k.of(t)
		k.eventually("hello from", "get", "--raw", "/api/v1/namespaces/default/services/web/proxy/")
		k.eventually("hello from "+pod, "get", "--raw", "/api/v1/namespaces/default/pods/"+pod+":8080/proxy/")
		k.eventually("ok", "get", "--raw", "/api/v1/nodes/"+n.Name+"/proxy/healthz")
	})
	t.Run("a Service from a Pod", func(t *testing.T) {
		address := k.of(t).run("get", "service/web", "-o", "jsonpath={.spec.clusterIP}")
		k.of(t).eventually("hello from", "exec", pod, "--", "wget", "-q", "-O", "-", "http://"+address+"/")
	})
	t.Run("the API from a Pod", func(t *testing.T) {
		k := k.of(t)
		k.run("create", "rolebinding", "view", "--clusterrole=view", "--serviceaccount=default:default")
		// kubectl finds the Service kubernetes and the token of the ServiceAccount.
		k.eventually("deployment.apps/web", "exec", pod, "--", "kubectl", "get", "deployments", "-o", "name", "--cache-dir=/tmp")
		if o := k.try("exec", pod, "--", "kubectl", "get", "secrets", "--cache-dir=/tmp"); o.code == 0 || !strings.Contains(o.stderr, "system:serviceaccount:default:default") {
			t.Errorf("secrets: %+v", o)
		}
	})
	t.Run("logs of a Pod that restarts", func(t *testing.T) {
		k := k.of(t)
		k.stdin(pod1("again", "OnFailure", "echo run; sleep 1; [ -e /data/done ] && exec sleep 600; touch /data/done; exit 1")).run("apply", "-f", "-")
		k.eventually("1", "get", "pod/again", "-o", "jsonpath={.status.containerStatuses[0].restartCount}")
		k.eventually("run", "logs", "again", "--previous")
		if got := k.run("logs", "again", "--since=1h", "--tail=1"); got != "run\n" {
			t.Errorf("logs are %q", got)
		}
	})
	t.Run("attach", func(t *testing.T) {
		k := k.of(t)
		if got := k.stdin("typed\n").run("run", "typed", "--image="+ToolsImage, "--image-pull-policy=Never", "--restart=Never", "-i", "--rm", "--quiet", "--", "head", "-n", "1"); !strings.Contains(got, "typed") {
			t.Errorf("the Pod says %q", got)
		}
	})
	t.Run("copy", func(t *testing.T) {
		k := k.of(t)
		sent, back := filepath.Join(t.TempDir(), "sent"), filepath.Join(t.TempDir(), "back")
		content := randomBytes(t, 5<<20)
		if err := os.WriteFile(sent, content, 0o600); err != nil {
			t.Fatal(err)
		}
		k.run("cp", sent, pod+":/tmp/copied")
		k.run("cp", pod+":/tmp/copied", back)
		if got, err := os.ReadFile(back); err != nil || !bytes.Equal(got, content) {
			t.Errorf("%d bytes came back, %v", len(got), err)
		}
	})
	t.Run("debug", func(t *testing.T) {
		k := k.of(t)
		k.run("debug", pod, "--image="+ToolsImage, "--image-pull-policy=Never", "--container=inspector", "--", "echo", "here")
		k.eventually("here", "logs", pod, "-c", "inspector")
	})
	t.Run("port-forward", func(t *testing.T) { forward(t, k.of(t), pod) })
	t.Run("metrics-server", func(t *testing.T) {
		if testing.Short() {
			t.Skip("metrics-server takes minutes to build (-short)")
		}
		checkMetrics(t, k.of(t), n, pod)
	})
	t.Run("what a node may do", func(t *testing.T) { checkRestriction(t, k.of(t), n) })
	t.Run("restarts", func(t *testing.T) {
		k := k.of(t)
		// Of each container that runs: when it was started, and how often.
		containers := `jsonpath={range .items[*]}{.metadata.uid} {.status.containerStatuses[0].state.running.startedAt} {.status.containerStatuses[0].restartCount}{"\n"}{end}`
		before := k.run("get", "pods", "-l", "app=web", "-o", containers)
		for i, tier := range c.ServingTiers() {
			for replica := 0; c.Process(tier, replica) != nil; replica++ {
				c.Kill(tier, replica)
				if err := c.StartReplica(t.Context(), tier, replica); err != nil {
					t.Fatal(err)
				}
			}
			name := fmt.Sprint("after-", i)
			began := time.Now()
			k.eventually("created", "run", name, "--image="+ToolsImage, "--image-pull-policy=Never", "--", "sleep", "600")
			k.run("wait", "--for=condition=Ready", "pod/"+name, "--timeout=120s")
			t.Logf("a new Pod runs %v after the restart of %s", time.Since(began).Round(100*time.Millisecond), tier)
		}
		time.Sleep(2 * time.Second) // for more of kubelet's and the controllers' work
		if after := k.run("get", "pods", "-l", "app=web", "-o", containers); after != before {
			t.Errorf("pods were\n%sand are\n%s", before, after)
		}
	})
	t.Run("workloads", func(t *testing.T) {
		k := k.of(t)
		k.stdin(workloads).run("apply", "-f", "-")
		k.run("rollout", "status", "daemonset/agent", "--timeout=120s")
		k.run("rollout", "status", "statefulset/db", "--timeout=120s")
		k.run("wait", "--for=condition=Complete", "job/once", "--timeout=120s")
		k.run("create", "job", "tick-now", "--from=cronjob/tick")
		k.run("wait", "--for=condition=Complete", "job/tick-now", "--timeout=120s")
		k.run("delete", "deployment,statefulset,daemonset,job,cronjob", "--all", "--cascade=foreground", "--timeout=120s")
	})
}

// checkRestriction acts with the credentials of kubelet: for its own node, and for another's.
func checkRestriction(t *testing.T, k kubectl, n *Node) {
	node := k
	node.args = []string{"--kubeconfig=" + n.file("kubelet.kubeconfig")}
	node.run("label", "node", n.Name, "parity=mine", "--overwrite")
	k.stdin("apiVersion: v1\nkind: Node\nmetadata: {name: another}\n").run("create", "-f", "-")
	defer k.run("delete", "node", "another")
	k.run("create", "secret", "generic", "treasure", "--from-literal=gold=much")
	for _, forbidden := range [][]string{
		{"label", "node", "another", "parity=yours"},
		{"delete", "node", "another"},
		{"label", "node", n.Name, "node-restriction.kubernetes.io/a=b"},
		{"get", "secret", "treasure"},
		{"get", "secrets", "-A"},
		{"create", "token", "default"},
	} {
		if o := node.try(forbidden...); o.code == 0 || !strings.Contains(o.stderr, "orbidden") {
			t.Errorf("%q: %+v", forbidden, o)
		}
	}
}

// pod1 is the manifest of a Pod with one container.
func pod1(name, restart, script string) string {
	return fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata: {name: %s}
spec:
  restartPolicy: %s
  terminationGracePeriodSeconds: 1
  volumes: [{name: data, emptyDir: {}}]
  containers: [{name: main, image: %q, imagePullPolicy: Never, command: [sh, -c, %q], volumeMounts: [{name: data, mountPath: /data}]}]
`, name, restart, ToolsImage, script)
}

const template = `  template:
    metadata: {labels: {app: %[2]s}}
    spec: {terminationGracePeriodSeconds: 1, restartPolicy: %[3]s, containers: [{name: main, image: "` + ToolsImage + `", imagePullPolicy: Never, command: [sh, -c, "%[4]s"]}]}
`

func workload(apiVersion, kind, name, restart, script, spec string) string {
	return fmt.Sprintf("apiVersion: "+apiVersion+"\nkind: %[1]s\nmetadata: {name: %[2]s}\nspec:\n"+spec+template+"---\n", kind, name, restart, script)
}

var workloads = workload("apps/v1", "DaemonSet", "agent", "Always", "sleep 600", "  selector: {matchLabels: {app: %[2]s}}\n") +
	workload("apps/v1", "StatefulSet", "db", "Always", "sleep 600", "  serviceName: db\n  replicas: 2\n  selector: {matchLabels: {app: %[2]s}}\n") +
	workload("batch/v1", "Job", "once", "Never", "true", "  completions: 2\n") +
	`apiVersion: batch/v1
kind: CronJob
metadata: {name: tick}
spec: {schedule: "0 0 1 1 *", jobTemplate: {spec: {template: {spec: {restartPolicy: Never, containers: [{name: main, image: "` + ToolsImage + `", imagePullPolicy: Never, command: ["true"]}]}}}}}
`

// forwarded is how many bytes port-forward carries in each direction.
const forwarded = 100 << 20

// forward sends bytes through port-forward to a Pod that sends them back.
func forward(t *testing.T, k kubectl, pod string) {
	k.stdin(pod1("echo", "Never", "nc -ll -p 7 -e cat")).run("apply", "-f", "-")
	k.run("wait", "--for=condition=Ready", "pod/echo", "--timeout=60s")
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, k.path, append([]string{"port-forward", "pod/echo", ":7"}, k.args...)...)
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { cancel(); _ = cmd.Wait() }()
	line, err := bufio.NewReader(stdout).ReadString('\n') // Forwarding from 127.0.0.1:33333 -> 7
	if err != nil {
		_ = cmd.Wait()
		t.Fatalf("port-forward: %v: %s", err, stderr.String())
	}
	conn, err := net.Dial("tcp", strings.Fields(line)[2])
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	content := randomBytes(t, forwarded)
	began := time.Now()
	sent := make(chan error, 1)
	go func() {
		_, err := conn.Write(content)
		sent <- err
	}()
	back := make([]byte, len(content))
	if _, err := io.ReadFull(conn, back); err != nil {
		t.Fatal(err)
	}
	if err := <-sent; err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(back, content) {
		t.Error("other bytes came back")
	}
	t.Logf("%d MiB both ways in %v", forwarded>>20, time.Since(began).Round(time.Millisecond))
}

func randomBytes(t *testing.T, n int) []byte {
	t.Helper()
	data := make([]byte, n)
	if _, err := rand.Read(data); err != nil {
		t.Fatal(err)
	}
	return data
}

// kubectl runs kubectl with the administrator's kubeconfig.
type kubectl struct {
	t    *testing.T
	path string
	args []string
	in   string
}

func newKubectl(t *testing.T, c *cluster.Cluster) kubectl {
	t.Helper()
	path, err := tools.Path(t.Context(), "kubectl")
	if err != nil {
		t.Fatal(err)
	}
	return kubectl{t: t, path: path, args: []string{"--kubeconfig=" + c.Kubeconfig}}
}

func (k kubectl) of(t *testing.T) kubectl { k.t = t; return k }

func (k kubectl) stdin(in string) kubectl { k.in = in; return k }

type output struct {
	stdout, stderr string
	code           int
}

func (k kubectl) try(args ...string) output {
	k.t.Helper()
	ctx, cancel := context.WithTimeout(k.t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, k.path, append(args[:len(args):len(args)], k.args...)...)
	if i := indexOf(args, "--"); i >= 0 {
		cmd = exec.CommandContext(ctx, k.path, append(append(append([]string{}, args[:i]...), k.args...), args[i:]...)...)
	}
	cmd.Stdin = strings.NewReader(k.in)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	o := output{}
	if err := cmd.Run(); err != nil {
		o.code = cmd.ProcessState.ExitCode()
		fmt.Fprintf(&stderr, "\n%v", err)
	}
	o.stdout, o.stderr = stdout.String(), stderr.String()
	return o
}

func indexOf(args []string, want string) int {
	for i, arg := range args {
		if arg == want {
			return i
		}
	}
	return -1
}

func (k kubectl) run(args ...string) string {
	k.t.Helper()
	o := k.try(args...)
	if o.code != 0 {
		k.t.Fatalf("kubectl %s: %s%s", strings.Join(args, " "), o.stdout, o.stderr)
	}
	return o.stdout
}

// eventually repeats the command until it prints text.
func (k kubectl) eventually(text string, args ...string) {
	k.t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(250 * time.Millisecond) {
		o := k.try(args...)
		if o.code == 0 && strings.Contains(o.stdout, text) {
			return
		}
		if time.Now().After(deadline) {
			k.t.Fatalf("kubectl %s does not print %q: %s%s", strings.Join(args, " "), text, o.stdout, o.stderr)
		}
	}
}
