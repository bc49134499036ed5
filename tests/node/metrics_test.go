package node

import (
	"testing"

	"triune.dev/tests/cli"
	"triune.dev/tests/tools"
)

const metricsImage = "localhost/metrics-server:test"

// metricsServer is the manifest of metrics-server.
const metricsServer = `apiVersion: v1
kind: ServiceAccount
metadata: {name: metrics-server, namespace: kube-system}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: "system:metrics-server"}
rules:
- {apiGroups: [""], resources: [nodes/metrics], verbs: [get]}
- {apiGroups: [""], resources: [pods, nodes], verbs: [get, list, watch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: "system:metrics-server"}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: "system:metrics-server"}
subjects: [{kind: ServiceAccount, name: metrics-server, namespace: kube-system}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: "metrics-server:system:auth-delegator"}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: "system:auth-delegator"}
subjects: [{kind: ServiceAccount, name: metrics-server, namespace: kube-system}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: metrics-server-auth-reader, namespace: kube-system}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: extension-apiserver-authentication-reader}
subjects: [{kind: ServiceAccount, name: metrics-server, namespace: kube-system}]
---
apiVersion: v1
kind: Service
metadata: {name: metrics-server, namespace: kube-system}
spec: {selector: {app: metrics-server}, ports: [{name: https, port: 443, targetPort: 10250}]}
---
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: v1beta1.metrics.k8s.io}
spec: {group: metrics.k8s.io, version: v1beta1, groupPriorityMinimum: 100, versionPriority: 100, insecureSkipTLSVerify: true, service: {name: metrics-server, namespace: kube-system}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: metrics-server, namespace: kube-system}
spec:
  selector: {matchLabels: {app: metrics-server}}
  template:
    metadata: {labels: {app: metrics-server}}
    spec:
      serviceAccountName: metrics-server
      terminationGracePeriodSeconds: 1
      containers:
      - name: metrics-server
        image: ` + metricsImage + `
        imagePullPolicy: Never
        command: [metrics-server, --cert-dir=/tmp, --secure-port=10250, --kubelet-preferred-address-types=InternalIP, --kubelet-certificate-authority=/var/run/secrets/kubernetes.io/serviceaccount/ca.crt, --metric-resolution=15s]
        readinessProbe: {httpGet: {path: /readyz, port: 10250, scheme: HTTPS}, periodSeconds: 1, failureThreshold: 60}
`

// checkMetrics runs metrics-server, unmodified, as a Deployment, and asks it by kubectl top.
func checkMetrics(t *testing.T, k cli.Command, n *Node, pod string) {
	program, err := tools.Path(t.Context(), "metrics-server")
	if err != nil {
		t.Fatal(err)
	}
	if err := n.ImportPrograms(t.Context(), metricsImage, []string{program}, "metrics-server"); err != nil {
		t.Fatal(err)
	}
	k.Stdin(metricsServer).Run("apply", "-f", "-")
	defer func() {
		if t.Failed() {
			t.Log(k.Try("describe", "pods", "-n", "kube-system", "-l", "app=metrics-server"))
			t.Log(k.Try("logs", "deployment/metrics-server", "-n", "kube-system"))
		}
	}()
	k.Run("rollout", "status", "deployment/metrics-server", "-n", "kube-system", "--timeout=120s")
	k.Run("wait", "--for=condition=Available", "apiservice/v1beta1.metrics.k8s.io", "--timeout=120s")
	k.Eventually(patience, n.Name, "top", "node")
	k.Eventually(patience, pod, "top", "pod", "-l", "app=web")
	k.Run("delete", "apiservice", "v1beta1.metrics.k8s.io")
	k.Run("delete", "deployment/metrics-server", "-n", "kube-system")
}
