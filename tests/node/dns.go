package node

import (
	"testing"

	"triune.dev/tests/cli"
	"triune.dev/tests/tools"
)

const dnsImage = "localhost/coredns:test"

// dns is the manifest of CoreDNS, which answers for Services and Pods at the address that
// kubelet gives to Pods.
const dns = `apiVersion: v1
kind: ServiceAccount
metadata: {name: coredns, namespace: kube-system}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: "system:coredns"}
rules:
- {apiGroups: [""], resources: [services, pods, namespaces], verbs: [list, watch]}
- {apiGroups: [discovery.k8s.io], resources: [endpointslices], verbs: [list, watch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: "system:coredns"}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: "system:coredns"}
subjects: [{kind: ServiceAccount, name: coredns, namespace: kube-system}]
---
apiVersion: v1
kind: ConfigMap
metadata: {name: coredns, namespace: kube-system}
data:
  Corefile: |
    .:53 {
        errors
        ready
        kubernetes cluster.local in-addr.arpa ip6.arpa {
            pods insecure
            ttl 5
        }
        cache 5
    }
---
apiVersion: v1
kind: Service
metadata: {name: kube-dns, namespace: kube-system, labels: {k8s-app: kube-dns}}
spec:
  clusterIP: ` + clusterDNS + `
  selector: {k8s-app: kube-dns}
  ports: [{name: dns, port: 53, protocol: UDP}, {name: dns-tcp, port: 53, protocol: TCP}]
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: coredns, namespace: kube-system}
spec:
  selector: {matchLabels: {k8s-app: kube-dns}}
  template:
    metadata: {labels: {k8s-app: kube-dns}}
    spec:
      serviceAccountName: coredns
      priorityClassName: system-cluster-critical
      tolerations: [{operator: Exists}]
      dnsPolicy: Default
      volumes: [{name: config, configMap: {name: coredns}}]
      containers:
      - name: coredns
        image: ` + dnsImage + `
        imagePullPolicy: Never
        command: [coredns, -conf, /config/Corefile]
        volumeMounts: [{name: config, mountPath: /config}]
        readinessProbe: {httpGet: {path: /ready, port: 8181}, periodSeconds: 1, failureThreshold: 60}
`

// RunDNS starts CoreDNS on the node, and returns when it is ready.
func (n *Node) RunDNS(t *testing.T, k cli.Command) {
	t.Helper()
	program, err := tools.Path(t.Context(), "coredns")
	if err != nil {
		t.Fatal(err)
	}
	if err := n.ImportPrograms(t.Context(), dnsImage, []string{program}, "coredns"); err != nil {
		t.Fatal(err)
	}
	k.Stdin(dns).Run("apply", "-f", "-")
	k.Run("rollout", "status", "deployment/coredns", "-n", "kube-system", "--timeout=120s")
}
