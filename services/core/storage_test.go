package core

import (
	"bytes"
	"slices"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	batchv1 "k8s.io/api/batch/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// stored is an object with the key and the encoding that kube-apiserver uses.
type stored struct {
	create func() (metav1.Object, error)
	key    string
	// version and kind of the stored object, which may differ from the request.
	version, kind string
}

// testStorage checks keys and encodings, so that Triune and kube-apiserver can use the etcd
// of the other.
func (c *cluster) testStorage(t *testing.T) {
	ctx, o := t.Context(), metav1.CreateOptions{}
	named := metav1.ObjectMeta{Name: "kept"}
	labels := map[string]string{"a": "b"}
	template := corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: labels},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}},
	}
	job := template
	job.Spec.RestartPolicy = corev1.RestartPolicyNever
	objects := map[string]stored{
		"ConfigMap": {func() (metav1.Object, error) {
			return c.client.CoreV1().ConfigMaps("default").Create(ctx, &corev1.ConfigMap{ObjectMeta: named, Data: map[string]string{"k": "v"}}, o)
		}, "/registry/configmaps/default/kept", "v1", "ConfigMap"},
		"Node": {func() (metav1.Object, error) {
			return c.client.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: named}, o)
		}, "/registry/minions/kept", "v1", "Node"},
		"Service": {func() (metav1.Object, error) {
			return c.client.CoreV1().Services("default").Create(ctx, &corev1.Service{ObjectMeta: named, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}}, o)
		}, "/registry/services/specs/default/kept", "v1", "Service"},
		"Endpoints": {func() (metav1.Object, error) {
			//nolint:staticcheck // deprecated in 1.33, but still stored
			return c.client.CoreV1().Endpoints("default").Create(ctx, &corev1.Endpoints{ObjectMeta: named}, o)
		}, "/registry/services/endpoints/default/kept", "v1", "Endpoints"},
		"ReplicationController": {func() (metav1.Object, error) {
			return c.client.CoreV1().ReplicationControllers("default").Create(ctx, &corev1.ReplicationController{ObjectMeta: named, Spec: corev1.ReplicationControllerSpec{Selector: labels, Template: &template}}, o)
		}, "/registry/controllers/default/kept", "v1", "ReplicationController"},
		"Deployment": {func() (metav1.Object, error) {
			return c.client.AppsV1().Deployments("default").Create(ctx, &appsv1.Deployment{ObjectMeta: named, Spec: appsv1.DeploymentSpec{Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: template}}, o)
		}, "/registry/deployments/default/kept", "apps/v1", "Deployment"},
		"Job": {func() (metav1.Object, error) {
			return c.client.BatchV1().Jobs("default").Create(ctx, &batchv1.Job{ObjectMeta: named, Spec: batchv1.JobSpec{Template: job}}, o)
		}, "/registry/jobs/default/kept", "batch/v1", "Job"},
		"HorizontalPodAutoscaler of the older version": {func() (metav1.Object, error) {
			return c.client.AutoscalingV1().HorizontalPodAutoscalers("default").Create(ctx, &autoscalingv1.HorizontalPodAutoscaler{ObjectMeta: named, Spec: autoscalingv1.HorizontalPodAutoscalerSpec{
				ScaleTargetRef: autoscalingv1.CrossVersionObjectReference{Kind: "Deployment", Name: "kept", APIVersion: "apps/v1"}, MaxReplicas: 2}}, o)
		}, "/registry/horizontalpodautoscalers/default/kept", "autoscaling/v2", "HorizontalPodAutoscaler"},
		"Event of the newer group": {func() (metav1.Object, error) {
			return c.client.EventsV1().Events("default").Create(ctx, &eventsv1.Event{ObjectMeta: named, EventTime: metav1.NowMicro(), ReportingController: "c.example.com/c", ReportingInstance: "i",
				Action: "a", Reason: "r", Type: "Normal", Regarding: corev1.ObjectReference{Namespace: "default", Kind: "Pod", Name: "p"}}, o)
		}, "/registry/events/default/kept", "v1", "Event"},
		"Lease": {func() (metav1.Object, error) {
			return c.client.CoordinationV1().Leases("default").Create(ctx, &coordinationv1.Lease{ObjectMeta: named}, o)
		}, "/registry/leases/default/kept", "coordination.k8s.io/v1", "Lease"},
		"Ingress": {func() (metav1.Object, error) {
			return c.client.NetworkingV1().Ingresses("default").Create(ctx, &networkingv1.Ingress{ObjectMeta: named, Spec: networkingv1.IngressSpec{
				DefaultBackend: &networkingv1.IngressBackend{Service: &networkingv1.IngressServiceBackend{Name: "s", Port: networkingv1.ServiceBackendPort{Number: 1}}}}}, o)
		}, "/registry/ingress/default/kept", "networking.k8s.io/v1", "Ingress"},
		"ClusterRole": {func() (metav1.Object, error) {
			return c.client.RbacV1().ClusterRoles().Create(ctx, &rbacv1.ClusterRole{ObjectMeta: named}, o)
		}, "/registry/clusterroles/kept", "rbac.authorization.k8s.io/v1", "ClusterRole"},
		"StorageClass": {func() (metav1.Object, error) {
			return c.client.StorageV1().StorageClasses().Create(ctx, &storagev1.StorageClass{ObjectMeta: named, Provisioner: "p.example.com"}, o)
		}, "/registry/storageclasses/kept", "storage.k8s.io/v1", "StorageClass"},
	}
	for name, object := range objects {
		t.Run(name, func(t *testing.T) { c.testStored(t, object) })
	}
	t.Run("no other keys", func(t *testing.T) {
		answer, err := c.etcd.Get(ctx, "", clientv3.WithPrefix(), clientv3.WithKeysOnly())
		if err != nil {
			t.Fatal(err)
		}
		for _, kv := range answer.Kvs {
			if !bytes.HasPrefix(kv.Key, []byte("/registry/")) && string(kv.Key) != "compact_rev_key" {
				t.Errorf("key %q", kv.Key)
			}
		}
	})
}

func (c *cluster) testStored(t *testing.T, object stored) {
	created, err := object.create()
	if err != nil {
		t.Fatal(err)
	}
	answer, err := c.etcd.Get(t.Context(), object.key)
	if err != nil {
		t.Fatal(err)
	}
	if len(answer.Kvs) != 1 {
		t.Fatalf("nothing at %s", object.key)
	}
	value := answer.Kvs[0].Value
	body, isProtobuf := bytes.CutPrefix(value, []byte("k8s\x00"))
	if !isProtobuf {
		t.Fatalf("%s begins with %q", object.key, value[:min(len(value), 8)])
	}
	var envelope runtime.Unknown
	if err := envelope.Unmarshal(body); err != nil {
		t.Fatal(err)
	}
	if envelope.APIVersion != object.version || envelope.Kind != object.kind {
		t.Errorf("stored as %s %s, want %s %s", envelope.APIVersion, envelope.Kind, object.version, object.kind)
	}
	if !bytes.Contains(envelope.Raw, []byte(created.GetUID())) {
		t.Error("the stored form has no UID")
	}
	// The resourceVersion is the revision and is not stored.
	if got := []byte(created.GetResourceVersion()); !slices.Equal(got, []byte(formatRevision(answer.Kvs[0].ModRevision))) {
		t.Errorf("resourceVersion %s at revision %d", got, answer.Kvs[0].ModRevision)
	}
}
