package core

import (
	"math/rand"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/apitesting/fuzzer"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	apitesting "k8s.io/kubernetes/pkg/api/testing"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"
	api "k8s.io/kubernetes/pkg/apis/core"
	podsecurity "k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"
)

// read holds the results of the readers of core's informers for a pod.
type read struct {
	Node, ServiceAccount, UID string
	Deleted                   *metav1.Time
	Owners                    []metav1.OwnerReference
	Class                     *string
	Secrets, ConfigMaps       []string
	Volumes                   []corev1.Volume
	Claims                    []corev1.PodResourceClaim
	ClaimStatuses             []corev1.PodResourceClaimStatus
	ExtendedClaim             *corev1.PodExtendedResourceClaimStatus
	Mirror                    string
	Ephemeral                 int
	Checks                    map[podsecurity.Level][]policy.CheckResult
}

func readPod(pod *corev1.Pod, evaluate func(podsecurity.LevelVersion, *metav1.ObjectMeta, *corev1.PodSpec) []policy.CheckResult) read {
	r := read{
		Node: pod.Spec.NodeName, ServiceAccount: pod.Spec.ServiceAccountName, UID: string(pod.UID), Deleted: pod.DeletionTimestamp,
		Owners: pod.OwnerReferences, Class: pod.Spec.RuntimeClassName, Volumes: pod.Spec.Volumes, Claims: pod.Spec.ResourceClaims,
		ClaimStatuses: pod.Status.ResourceClaimStatuses, ExtendedClaim: pod.Status.ExtendedResourceClaimStatus,
		Mirror: pod.Annotations[corev1.MirrorPodAnnotationKey], Ephemeral: len(pod.Spec.EphemeralContainers),
		Checks: map[podsecurity.Level][]policy.CheckResult{},
	}
	podutil.VisitPodSecretNames(pod, func(name string) bool {
		r.Secrets = append(r.Secrets, name)
		return true
	})
	podutil.VisitPodConfigmapNames(pod, func(name string) bool {
		r.ConfigMaps = append(r.ConfigMaps, name)
		return true
	})
	for _, level := range []podsecurity.Level{podsecurity.LevelBaseline, podsecurity.LevelRestricted} {
		of := podsecurity.LevelVersion{Level: level, Version: podsecurity.LatestVersion()}
		r.Checks[level] = evaluate(of, &pod.ObjectMeta, &pod.Spec)
	}
	return r
}

// TestTrim checks that trimming a pod changes no result of its readers.
func TestTrim(t *testing.T) {
	evaluator, err := policy.NewEvaluator(policy.DefaultChecks(), nil)
	if err != nil {
		t.Fatal(err)
	}
	fill := fuzzer.FuzzerFor(apitesting.FuzzerFuncs, rand.NewSource(2), legacyscheme.Codecs)
	var secrets, maps int
	for range 1000 {
		var internal api.Pod
		fill.Fill(&internal)
		pod := &corev1.Pod{}
		if err := legacyscheme.Scheme.Convert(&internal, pod, nil); err != nil {
			t.Fatal(err)
		}
		claim := "claim"
		pod.Status.ResourceClaimStatuses = []corev1.PodResourceClaimStatus{{Name: "a", ResourceClaimName: &claim}}
		pod.Status.ExtendedResourceClaimStatus = &corev1.PodExtendedResourceClaimStatus{ResourceClaimName: "b"}
		want := readPod(pod.DeepCopy(), evaluator.EvaluatePod)
		if _, err := trim(pod); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, readPod(pod, evaluator.EvaluatePod)); diff != "" {
			t.Fatalf("(-before +after):\n%s", diff)
		}
		if pod.ManagedFields != nil || slices.ContainsFunc(pod.Spec.Containers, func(c corev1.Container) bool { return c.Args != nil }) {
			t.Fatal("the pod is as large as it was")
		}
		secrets, maps = secrets+len(want.Secrets), maps+len(want.ConfigMaps)
	}
	if secrets == 0 || maps == 0 {
		t.Errorf("%d secrets and %d config maps were compared", secrets, maps)
	}
	node := &corev1.Node{Status: corev1.NodeStatus{Images: []corev1.ContainerImage{{SizeBytes: 1}}, DeclaredFeatures: []string{"a"}}}
	if _, err := trim(node); err != nil || node.Status.Images != nil || len(node.Status.DeclaredFeatures) != 1 {
		t.Errorf("node %+v, %v", node.Status, err)
	}
}
