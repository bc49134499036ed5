package reads

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	quantity "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
)

// Run with
//
//	go test -run '^$' -bench . ./shared/server/reads
//
// The handlers alone are measured: no TLS, no handler chain. etcd runs in the same process,
// so its CPU time is included.

// discard is a response that discards its body.
type discard struct {
	header http.Header
	bytes  int64
	writes int
}

func (d *discard) Header() http.Header { return d.header }
func (d *discard) WriteHeader(int)     {}
func (d *discard) Write(p []byte) (int, error) {
	d.bytes += int64(len(p))
	d.writes++
	return len(p), nil
}

// fullPod is about as large as pods are in a cluster.
func fullPod(i int) *corev1.Pod {
	p := pod(fmt.Sprintf("team-%02d", i%20), fmt.Sprintf("web-7d4f8b9c5d-%05d", i), i)
	now := metav1.NewTime(time.Now().Add(-time.Hour))
	p.Labels = map[string]string{"app": fmt.Sprintf("app-%02d", i%50), "pod-template-hash": "7d4f8b9c5d", "tier": "web"}
	p.Spec.NodeName = fmt.Sprintf("node-%03d", i%100)
	p.Spec.Containers = []corev1.Container{{
		Name: "main", Image: "registry.example.com/team/web:v1.2.3", ImagePullPolicy: corev1.PullIfNotPresent,
		Env:                    []corev1.EnvVar{{Name: "POD_NAME", Value: "x"}, {Name: "LOG_LEVEL", Value: "info"}, {Name: "ENDPOINT", Value: "http://backend.default.svc:8080"}},
		Ports:                  []corev1.ContainerPort{{Name: "http", ContainerPort: 8080, Protocol: corev1.ProtocolTCP}},
		Resources:              corev1.ResourceRequirements{Requests: corev1.ResourceList{"cpu": quantity.MustParse("100m"), "memory": quantity.MustParse("128Mi")}},
		VolumeMounts:           []corev1.VolumeMount{{Name: "kube-api-access", MountPath: "/var/run/secrets/kubernetes.io/serviceaccount", ReadOnly: true}},
		TerminationMessagePath: "/dev/termination-log", TerminationMessagePolicy: corev1.TerminationMessageReadFile,
	}}
	p.Spec.Tolerations = []corev1.Toleration{{Key: "node.kubernetes.io/not-ready", Operator: "Exists", Effect: "NoExecute"}, {Key: "node.kubernetes.io/unreachable", Operator: "Exists", Effect: "NoExecute"}}
	p.Spec.Volumes = []corev1.Volume{{Name: "kube-api-access", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{}}}}
	p.Status.PodIP, p.Status.HostIP = fmt.Sprintf("10.1.%d.%d", i/250, i%250), "192.168.1.1"
	for _, c := range []string{"PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled"} {
		p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: corev1.PodConditionType(c), Status: "True", LastTransitionTime: now, ObservedGeneration: 1})
	}
	p.Status.ContainerStatuses = []corev1.ContainerStatus{{
		Name: "main", Ready: true, Image: "registry.example.com/team/web:v1.2.3", ImageID: "registry.example.com/team/web@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
		ContainerID: "containerd://0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: now}},
	}}
	p.ManagedFields = append(p.ManagedFields, metav1.ManagedFieldsEntry{
		Manager: "kube-controller-manager", Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: "v1", Time: &now, FieldsType: "FieldsV1",
		FieldsV1: &metav1.FieldsV1{Raw: []byte(`{"f:metadata":{"f:generateName":{},"f:labels":{".":{},"f:app":{},"f:pod-template-hash":{}},"f:ownerReferences":{".":{},"k:{\"uid\":\"1\"}":{}}},"f:spec":{"f:containers":{"k:{\"name\":\"main\"}":{".":{},"f:image":{},"f:imagePullPolicy":{},"f:name":{},"f:resources":{},"f:terminationMessagePath":{},"f:terminationMessagePolicy":{}}},"f:dnsPolicy":{},"f:enableServiceLinks":{},"f:restartPolicy":{},"f:schedulerName":{},"f:securityContext":{},"f:terminationGracePeriodSeconds":{}}}`)},
	})
	return p
}

func (r *resource) newRequest(b testing.TB, path string, header http.Header) *http.Request {
	resolver := &request.RequestInfoFactory{APIPrefixes: sets.NewString("api", "apis"), GrouplessAPIPrefixes: sets.NewString("api")}
	req := httptest.NewRequest(http.MethodGet, path, nil)
	req.Header = header
	info, err := resolver.NewRequestInfo(req)
	if err != nil {
		b.Fatal(err)
	}
	return req.WithContext(request.WithRequestInfo(req.Context(), info))
}

func cpu() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func BenchmarkReads(b *testing.B) {
	w := newWorld(b)
	pods, widgets := w.pods(b), w.widgets(b)
	const n = 4000
	for i := range n {
		pods.create(b, fullPod(i))
		u := widget(fmt.Sprintf("team-%02d", i%20), fmt.Sprintf("w-%05d", i), i)
		u.Object["status"] = map[string]any{"text": fmt.Sprintf("%01200d", i)}
		widgets.create(b, u)
	}
	touched := 0
	touch := func(b *testing.B, r *resource, name string, count int) {
		for range count {
			i := touched % n
			touched += 37
			ctx := request.WithNamespace(context.Background(), fmt.Sprintf("team-%02d", i%20))
			if _, _, err := r.store.Update(ctx, fmt.Sprintf(name, i), rest.DefaultUpdatedObjectInfo(nil, stamp(touched)), nil, rest.ValidateAllObjectUpdateFunc, false, &metav1.UpdateOptions{}); err != nil {
				b.Fatal(err)
			}
		}
	}
	const table = "application/json;as=Table;g=meta.k8s.io;v=v1"
	const partial = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
	const asProtobuf = "application/vnd.kubernetes.protobuf"
	for _, bc := range []struct {
		name, path, accept string
		r                  *resource
		gzip               bool
		// touched is the number of objects that change between two requests, which is not measured.
		touched  int
		upstream bool
	}{
		{name: "GET", path: "/api/v1/namespaces/team-07/pods/web-7d4f8b9c5d-00007"},
		{name: "GET rv=0", path: "/api/v1/namespaces/team-07/pods/web-7d4f8b9c5d-00007?resourceVersion=0"},
		{name: "GET rv=0 protobuf", path: "/api/v1/namespaces/team-07/pods/web-7d4f8b9c5d-00007?resourceVersion=0", accept: asProtobuf},
		{name: "LIST JSON", path: "/api/v1/pods"},
		{name: "LIST JSON upstream", path: "/api/v1/pods", upstream: true},
		{name: "LIST protobuf", path: "/api/v1/pods", accept: asProtobuf},
		{name: "LIST gzip", path: "/api/v1/pods", gzip: true},
		{name: "LIST gzip 1 touched", path: "/api/v1/pods", gzip: true, touched: 1},
		{name: "LIST gzip 100 touched", path: "/api/v1/pods", gzip: true, touched: 100},
		{name: "LIST JSON 100 touched", path: "/api/v1/pods", touched: 100},
		{name: "LIST protobuf 100 touched", path: "/api/v1/pods", accept: asProtobuf, touched: 100},
		{name: "LIST label 80", path: "/api/v1/pods?labelSelector=app%3Dapp-03"},
		{name: "LIST label 80 rv=0", path: "/api/v1/pods?labelSelector=app%3Dapp-03&resourceVersion=0"},
		{name: "LIST field 40", path: "/api/v1/pods?fieldSelector=spec.nodeName%3Dnode-003"},
		{name: "LIST no match", path: "/api/v1/pods?labelSelector=app%3Dnone"},
		{name: "LIST Table 500", path: "/api/v1/pods?limit=500", accept: table},
		{name: "LIST Table 500 upstream", path: "/api/v1/pods?limit=500", accept: table, upstream: true},
		{name: "LIST Partial", path: "/api/v1/pods", accept: partial},
		{name: "LIST custom", path: "/apis/example.com/v1/widgets", r: widgets},
		{name: "LIST custom gzip", path: "/apis/example.com/v1/widgets", r: widgets, gzip: true},
	} {
		b.Run(bc.name, func(b *testing.B) {
			r := bc.r
			if r == nil {
				r = pods
			}
			header := http.Header{}
			if bc.accept != "" {
				header.Set("Accept", bc.accept)
			}
			if bc.gzip {
				header.Set("Accept-Encoding", "gzip")
			}
			req := r.newRequest(b, bc.path, header)
			handler := r.ours.Config.Handler
			if bc.upstream {
				handler = r.upstream.Config.Handler
			}
			fallbacks := r.fallbacks.Load()
			started := cpu()
			handler.ServeHTTP(&discard{header: http.Header{}}, req)
			cold := cpu() - started
			var used time.Duration
			size := int64(0)
			b.ReportAllocs()
			for b.Loop() {
				if bc.touched > 0 {
					b.StopTimer()
					touch(b, pods, "web-7d4f8b9c5d-%05d", bc.touched)
					b.StartTimer()
				}
				w := &discard{header: http.Header{}}
				started := cpu()
				handler.ServeHTTP(w, req)
				used += cpu() - started
				size = w.bytes
			}
			if !bc.upstream && r.fallbacks.Load() != fallbacks {
				b.Error("the fallback has answered")
			}
			b.ReportMetric(float64(used.Microseconds())/float64(b.N), "cpu-µs/op")
			b.ReportMetric(float64(cold.Microseconds()), "cold-µs")
			b.ReportMetric(float64(size), "bytes")
		})
	}
}

func stamp(i int) rest.TransformFunc {
	return func(_ context.Context, obj, old runtime.Object) (runtime.Object, error) {
		out := old.DeepCopyObject()
		switch o := out.(type) {
		case *corev1.Pod:
			o.Annotations["touched"] = fmt.Sprint(i)
		case *unstructured.Unstructured:
			o.SetAnnotations(map[string]string{"touched": fmt.Sprint(i)})
		}
		return out, nil
	}
}
