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
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"triune.dev/tests/bench/accounting"
	"triune.dev/tests/cli"
	"triune.dev/tests/cluster"
)

var (
	target   = flag.String("target", "triune", "the API server: triune, tiers or kube-apiserver")
	replicas = flag.Int("replicas", 1, "how many replicas each of the tiers has")
)

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
	if lacks := Missing(); lacks != "" && testing.Short() {
		t.Skip(lacks)
	}
	c, n := Run(t, *target, *replicas, func(config *cluster.Config) {
		config.Flags["kube-controller-manager"] = []string{"--cluster-signing-duration=" + certificateValidity.String()}
	})
	k := cli.Kubectl(t, c.Kubeconfig, "")
	began := time.Now()
	firstCertificate := n.clientCertificate(t)

	k.Stdin(web).Run("apply", "-f", "-")
	k.Run("rollout", "status", "deployment/web", "--timeout=120s")
	t.Logf("its first Pods run %v later", time.Since(began).Round(100*time.Millisecond))
	pod := strings.Fields(k.Run("get", "pods", "-l", "app=web", "-o", "jsonpath={.items[*].metadata.name}"))[0]
	t.Run("logs", func(t *testing.T) {
		if got := k.Of(t).Run("logs", pod); got != "started\n" {
			t.Errorf("logs are %q", got)
		}
	})
	t.Run("large logs", func(t *testing.T) { largeLogs(t, k.Of(t)) })
	for protocol, env := range map[string][]string{"WebSocket": nil, "SPDY": spdy} {
		t.Run("exec by "+protocol, func(t *testing.T) { execute(t, k.Of(t).With(env...), pod) })
		t.Run("port-forward by "+protocol, func(t *testing.T) { forward(t, k.Of(t).With(env...), pod) })
	}
	t.Run("proxies", func(t *testing.T) {
		k := k.Of(t)
		k.Eventually(patience, "hello from", "get", "--raw", "/api/v1/namespaces/default/services/web/proxy/")
		k.Eventually(patience, "hello from "+pod, "get", "--raw", "/api/v1/namespaces/default/pods/"+pod+":8080/proxy/")
		k.Eventually(patience, "ok", "get", "--raw", "/api/v1/nodes/"+n.Name+"/proxy/healthz")
	})
	t.Run("a Service from a Pod", func(t *testing.T) {
		address := k.Of(t).Run("get", "service/web", "-o", "jsonpath={.spec.clusterIP}")
		k.Of(t).Eventually(patience, "hello from", "exec", pod, "--", "wget", "-q", "-O", "-", "http://"+address+"/")
	})
	t.Run("the API from a Pod", func(t *testing.T) {
		k := k.Of(t)
		k.Run("create", "rolebinding", "view", "--clusterrole=view", "--serviceaccount=default:default")
		// kubectl finds the Service kubernetes and the token of the ServiceAccount.
		k.Eventually(patience, "deployment.apps/web", "exec", pod, "--", "kubectl", "get", "deployments", "-o", "name", "--cache-dir=/tmp")
		if o := k.Try("exec", pod, "--", "kubectl", "get", "secrets", "--cache-dir=/tmp"); o.Code == 0 || !strings.Contains(o.Stderr, "system:serviceaccount:default:default") {
			t.Errorf("secrets: %+v", o)
		}
	})
	t.Run("logs of a Pod that restarts", func(t *testing.T) {
		k := k.Of(t)
		k.Stdin(pod1("again", "OnFailure", "echo run; sleep 1; [ -e /data/done ] && exec sleep 600; touch /data/done; exit 1")).Run("apply", "-f", "-")
		k.Eventually(patience, "1", "get", "pod/again", "-o", "jsonpath={.status.containerStatuses[0].restartCount}")
		k.Eventually(patience, "run", "logs", "again", "--previous")
		if got := k.Run("logs", "again", "--since=1h", "--tail=1"); got != "run\n" {
			t.Errorf("logs are %q", got)
		}
	})
	t.Run("attach", func(t *testing.T) {
		k := k.Of(t)
		if got := k.Stdin("typed\n").Run("run", "typed", "--image="+ToolsImage, "--image-pull-policy=Never", "--restart=Never", "-i", "--rm", "--quiet", "--", "head", "-n", "1"); !strings.Contains(got, "typed") {
			t.Errorf("the Pod says %q", got)
		}
	})
	t.Run("copy", func(t *testing.T) {
		k := k.Of(t)
		sent, back := filepath.Join(t.TempDir(), "sent"), filepath.Join(t.TempDir(), "back")
		content := randomBytes(t, 5<<20)
		if err := os.WriteFile(sent, content, 0o600); err != nil {
			t.Fatal(err)
		}
		k.Run("cp", sent, pod+":/tmp/copied")
		k.Run("cp", pod+":/tmp/copied", back)
		if got, err := os.ReadFile(back); err != nil || !bytes.Equal(got, content) {
			t.Errorf("%d bytes came back, %v", len(got), err)
		}
	})
	t.Run("debug", func(t *testing.T) {
		k := k.Of(t)
		k.Run("debug", pod, "--image="+ToolsImage, "--image-pull-policy=Never", "--container=inspector", "--", "echo", "here")
		k.Eventually(patience, "here", "logs", pod, "-c", "inspector")
	})
	t.Run("names of Services", func(t *testing.T) {
		if testing.Short() {
			t.Skip("CoreDNS takes minutes to build (-short)")
		}
		checkNames(t, k.Of(t), n, pod)
	})
	t.Run("metrics-server", func(t *testing.T) {
		if testing.Short() {
			t.Skip("metrics-server takes minutes to build (-short)")
		}
		checkMetrics(t, k.Of(t), n, pod)
	})
	t.Run("certificate rotation", func(t *testing.T) {
		if testing.Short() {
			t.Skip("kubelet asks for another certificate after minutes (-short)")
		}
		checkRotation(t, k.Of(t), n, firstCertificate)
	})
	t.Run("idle", func(t *testing.T) { logIdle(t, c) })
	t.Run("what a node may do", func(t *testing.T) { checkRestriction(t, k.Of(t), n) })
	t.Run("restarts", func(t *testing.T) {
		k := k.Of(t)
		// Of each container that runs: when it was started, and how often.
		containers := `jsonpath={range .items[*]}{.metadata.uid} {.status.containerStatuses[0].state.running.startedAt} {.status.containerStatuses[0].restartCount}{"\n"}{end}`
		before := k.Run("get", "pods", "-l", "app=web", "-o", containers)
		for i, tier := range c.ServingTiers() {
			for replica := 0; c.Process(tier, replica) != nil; replica++ {
				c.Kill(tier, replica)
				if err := c.StartReplica(t.Context(), tier, replica); err != nil {
					t.Fatal(err)
				}
			}
			name := fmt.Sprint("after-", i)
			began := time.Now()
			k.Eventually(patience, "created", "run", name, "--image="+ToolsImage, "--image-pull-policy=Never", "--", "sleep", "600")
			k.Run("wait", "--for=condition=Ready", "pod/"+name, "--timeout=120s")
			t.Logf("a new Pod runs %v after the restart of %s", time.Since(began).Round(100*time.Millisecond), tier)
		}
		time.Sleep(2 * time.Second) // for more of kubelet's and the controllers' work
		if after := k.Run("get", "pods", "-l", "app=web", "-o", containers); after != before {
			t.Errorf("pods were\n%sand are\n%s", before, after)
		}
	})
	t.Run("workloads", func(t *testing.T) {
		k := k.Of(t)
		k.Stdin(workloads).Run("apply", "-f", "-")
		k.Run("rollout", "status", "daemonset/agent", "--timeout=120s")
		k.Run("rollout", "status", "statefulset/db", "--timeout=120s")
		k.Run("wait", "--for=condition=Complete", "job/once", "--timeout=120s")
		k.Run("create", "job", "tick-now", "--from=cronjob/tick")
		k.Run("wait", "--for=condition=Complete", "job/tick-now", "--timeout=120s")
		k.Run("delete", "deployment,statefulset,daemonset,job,cronjob", "--all", "--cascade=foreground", "--timeout=120s")
	})
}

// logIdle logs how much processor time the servers take while nothing but the node, its Pods
// and the controllers uses them.
func logIdle(t *testing.T, c *cluster.Cluster) {
	if testing.Short() {
		t.Skip("it takes half a minute (-short)")
	}
	const period = 30 * time.Second
	used := func() (total time.Duration, each []string) {
		for _, tier := range append(c.ServingTiers(), cluster.Etcd, cluster.NATS) {
			sum := time.Duration(0)
			for replica := 0; c.Process(tier, replica) != nil; replica++ {
				cpu, err := accounting.CPU(c.Process(tier, replica).PID())
				if err != nil {
					t.Fatal(err)
				}
				sum += cpu
			}
			total += sum
			each = append(each, fmt.Sprintf("%s %v", tier, sum.Round(time.Millisecond)))
		}
		return total, each
	}
	before, atFirst := used()
	time.Sleep(period)
	after, each := used()
	t.Logf("idle servers take %.1f %% of a processor; processor time was %s, and is %s", 100*float64(after-before)/float64(period), strings.Join(atFirst, ", "), strings.Join(each, ", "))
}

// checkRestriction acts with the credentials of kubelet: for its own node, and for another's.
func checkRestriction(t *testing.T, k cli.Command, n *Node) {
	node := k.With("KUBECONFIG=" + n.file("kubelet.kubeconfig"))
	node.Run("label", "node", n.Name, "parity=mine", "--overwrite")
	k.Stdin("apiVersion: v1\nkind: Node\nmetadata: {name: another}\n").Run("create", "-f", "-")
	defer k.Run("delete", "node", "another")
	k.Run("create", "secret", "generic", "treasure", "--from-literal=gold=much")
	for _, forbidden := range [][]string{
		{"label", "node", "another", "parity=yours"},
		{"delete", "node", "another"},
		{"label", "node", n.Name, "node-restriction.kubernetes.io/a=b"},
		{"get", "secret", "treasure"},
		{"get", "secrets", "-A"},
		{"create", "token", "default"},
	} {
		if o := node.Try(forbidden...); o.Code == 0 || !strings.Contains(o.Stderr, "orbidden") {
			t.Errorf("%q: %+v", forbidden, o)
		}
	}
}

// checkNames runs CoreDNS, which finds Services at the API's own address, and asks it from a Pod:
// for a Service, for one that is made later, and for the API, which kubectl uses by that name.
func checkNames(t *testing.T, k cli.Command, n *Node, pod string) {
	n.RunDNS(t, k)
	k.Eventually(patience, "hello from", "exec", pod, "--", "wget", "-q", "-O", "-", "http://web.default.svc.cluster.local/")
	k.Run("expose", "deployment/web", "--name=later", "--port=80", "--target-port=8080")
	k.Eventually(patience, "hello from", "exec", pod, "--", "wget", "-q", "-O", "-", "http://later/")
	k.Run("delete", "service/later")
	k.Eventually(patience, "deployment.apps/web", "exec", pod, "--", "sh", "-c", "kubectl --server=https://kubernetes.default --token=$(cat /var/run/secrets/kubernetes.io/serviceaccount/token)"+
		" --certificate-authority=/var/run/secrets/kubernetes.io/serviceaccount/ca.crt get deployments -o name --cache-dir=/tmp")
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

// spdy makes kubectl use the protocol that it used before v1.31.
var spdy = []string{"KUBECTL_REMOTE_COMMAND_WEBSOCKETS=false", "KUBECTL_PORT_FORWARD_WEBSOCKETS=false"}

// execute runs commands in a Pod: with output, with input, with an exit status, with much output, and in a terminal.
func execute(t *testing.T, k cli.Command, pod string) {
	if got := k.Run("exec", pod, "--", "cat", "/www/index.html"); got != "hello from "+pod+"\n" {
		t.Errorf("it says %q", got)
	}
	if got := k.Stdin("over there").Run("exec", "-i", pod, "--", "cat"); got != "over there" {
		t.Errorf("cat says %q", got)
	}
	if o := k.Try("exec", pod, "--", "sh", "-c", "exit 7"); o.Code != 7 {
		t.Errorf("exit status %d: %s", o.Code, o.Stderr)
	}
	began := time.Now()
	if got := k.Run("exec", pod, "--", "head", "-c", strconv.Itoa(forwarded), "/dev/zero"); len(got) != forwarded {
		t.Errorf("%d bytes came", len(got))
	}
	t.Logf("%d MiB in %v", forwarded>>20, time.Since(began).Round(time.Millisecond))
	resize(t, k, pod)
}

// largeLogs reads the logs of a Pod that has printed much.
func largeLogs(t *testing.T, k cli.Command) {
	// In long lines: kubelet needs longer for a line than a server for its bytes.
	script := fmt.Sprintf("yes $(printf %%04000d 0) | head -c %d", forwarded)
	k.Stdin(pod1("talker", "Never", script)).Run("apply", "-f", "-")
	defer k.Run("delete", "pod/talker")
	k.Run("wait", "--for=jsonpath={.status.phase}=Succeeded", "pod/talker", "--timeout=120s")
	began := time.Now()
	if got := k.Run("logs", "talker"); len(got) != forwarded {
		t.Errorf("%d bytes came", len(got))
	}
	t.Logf("%d MiB in %v", forwarded>>20, time.Since(began).Round(time.Millisecond))
}

// forwarded is how many bytes port-forward carries in each direction, and exec and logs in one.
const forwarded = 100 << 20

// forward sends bytes through port-forward to a Pod that sends them back.
func forward(t *testing.T, k cli.Command, pod string) {
	k.Stdin(pod1("echo", "Never", "nc -ll -p 7 -e cat")).Run("apply", "-f", "-")
	defer k.Run("delete", "pod/echo")
	k.Run("wait", "--for=condition=Ready", "pod/echo", "--timeout=60s")
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := k.Cmd(ctx, "port-forward", "pod/echo", ":7")
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
