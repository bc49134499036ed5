package autoregister

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/cache"
	fcache "k8s.io/client-go/tools/cache/testing"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset/fake"
	apiregistrationinformers "k8s.io/kube-aggregator/pkg/client/informers/externalversions"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type fixture struct {
	t         *testing.T
	client    *fake.Clientset
	registrar *Registrar
	crds      *fcache.FakeControllerSource
}

func start(t *testing.T, existing ...*apiregistrationv1.APIService) *fixture {
	t.Helper()
	f := &fixture{t: t, client: fake.NewSimpleClientset(), crds: fcache.NewFakeControllerSource()}
	for _, apiService := range existing {
		if err := f.client.Tracker().Add(apiService); err != nil {
			t.Fatal(err)
		}
	}
	factory := apiregistrationinformers.NewSharedInformerFactory(f.client, 0)
	var err error
	f.registrar, err = New(factory.Apiregistration().V1().APIServices(), f.client.ApiregistrationV1())
	if err != nil {
		t.Fatal(err)
	}
	informer := cache.NewSharedIndexInformer(f.crds, &apiextensionsv1.CustomResourceDefinition{}, 0, cache.Indexers{})
	counted, err := f.registrar.WatchCRDs(informer, nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	factory.Start(ctx.Done())
	done := make(chan struct{}, 3)
	go func() { f.registrar.Run(ctx); done <- struct{}{} }()
	go func() { informer.Run(ctx.Done()); done <- struct{}{} }()
	go func() { counted(ctx); done <- struct{}{} }()
	t.Cleanup(func() {
		cancel()
		for range 3 {
			<-done
		}
		factory.Shutdown()
		f.crds.Shutdown()
	})
	return f
}

// is waits until exactly the given APIServices exist.
func (f *fixture) is(want map[string]apiregistrationv1.APIServiceSpec) {
	f.t.Helper()
	var diff string
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		list, err := f.client.ApiregistrationV1().APIServices().List(f.t.Context(), metav1.ListOptions{})
		if err != nil {
			f.t.Fatal(err)
		}
		got := map[string]apiregistrationv1.APIServiceSpec{}
		for _, apiService := range list.Items {
			got[apiService.Name] = apiService.Spec
		}
		if diff = cmp.Diff(want, got); diff == "" {
			return
		}
	}
	f.t.Fatalf("APIServices (-want +got)\n%s", diff)
}

func apiService(name, label string, spec apiregistrationv1.APIServiceSpec) *apiregistrationv1.APIService {
	object := &apiregistrationv1.APIService{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}
	if label != "" {
		object.Labels = map[string]string{"kube-aggregator.kubernetes.io/automanaged": label}
	}
	return object
}

func crd(name, group string, versions ...apiextensionsv1.CustomResourceDefinitionVersion) *apiextensionsv1.CustomResourceDefinition {
	return &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       apiextensionsv1.CustomResourceDefinitionSpec{Group: group, Versions: versions},
	}
}

var (
	served   = apiextensionsv1.CustomResourceDefinitionVersion{Name: "v1", Served: true}
	unserved = apiextensionsv1.CustomResourceDefinitionVersion{Name: "v1alpha1"}

	coreV1       = schema.GroupVersion{Version: "v1"}
	appsV1       = schema.GroupVersion{Group: "apps", Version: "v1"}
	extensionsV1 = schema.GroupVersion{Group: "apiextensions.k8s.io", Version: "v1"}
	fooV1        = schema.GroupVersion{Group: "example.com", Version: "v1"}

	coreSpec       = apiregistrationv1.APIServiceSpec{Version: "v1", GroupPriorityMinimum: 18000, VersionPriority: 1}
	appsSpec       = apiregistrationv1.APIServiceSpec{Group: "apps", Version: "v1", GroupPriorityMinimum: 17800, VersionPriority: 15}
	extensionsSpec = apiregistrationv1.APIServiceSpec{Group: "apiextensions.k8s.io", Version: "v1", GroupPriorityMinimum: 16700, VersionPriority: 15}
	fooSpec        = apiregistrationv1.APIServiceSpec{Group: "example.com", Version: "v1", GroupPriorityMinimum: 1000, VersionPriority: 100}
	batchSpec      = apiregistrationv1.APIServiceSpec{Group: "batch", Version: "v2alpha1", GroupPriorityMinimum: 17400, VersionPriority: 9}
)

type specs = map[string]apiregistrationv1.APIServiceSpec

func TestOnlyBuiltInGroupVersionsAreRegisteredFromDiscovery(t *testing.T) {
	f := start(t)
	f.registrar.SetServed([]schema.GroupVersion{coreV1, appsV1, fooV1})
	f.is(specs{"v1.": coreSpec, "v1.apps": appsSpec})
	list, err := f.client.ApiregistrationV1().APIServices().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, object := range list.Items {
		if got := object.Labels["kube-aggregator.kubernetes.io/automanaged"]; got != "onstart" {
			t.Errorf("%s: label %q, want onstart", object.Name, got)
		}
	}
}

// A tier that is down keeps its APIServices.
func TestNothingIsDeletedWhileTheChainIsIncomplete(t *testing.T) {
	f := start(t, apiService("v2alpha1.batch", onStart, batchSpec), apiService("v1.apiextensions.k8s.io", onStart, extensionsSpec))
	f.registrar.SetServed([]schema.GroupVersion{coreV1}) // the last tier is down
	f.is(specs{"v1.": coreSpec, "v2alpha1.batch": batchSpec, "v1.apiextensions.k8s.io": extensionsSpec})
	f.registrar.SetServed([]schema.GroupVersion{coreV1, extensionsV1}) // all tiers are up
	f.is(specs{"v1.": coreSpec, "v1.apiextensions.k8s.io": extensionsSpec})
	f.registrar.SetServed([]schema.GroupVersion{coreV1, extensionsV1, {Group: "batch", Version: "v2alpha1"}})
	f.is(specs{"v1.": coreSpec, "v1.apiextensions.k8s.io": extensionsSpec, "v2alpha1.batch": batchSpec})
}

func TestOnStartIsWrittenOnce(t *testing.T) {
	wrong := appsSpec
	wrong.VersionPriority = 1
	f := start(t, apiService("v1.apps", onStart, wrong))
	f.registrar.SetServed([]schema.GroupVersion{coreV1, appsV1})
	f.is(specs{"v1.": coreSpec, "v1.apps": appsSpec})
	// From now on, the administrator decides.
	if err := f.client.ApiregistrationV1().APIServices().Delete(t.Context(), "v1.apps", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	f.registrar.SetServed([]schema.GroupVersion{coreV1, appsV1, {Group: "batch", Version: "v2alpha1"}})
	f.is(specs{"v1.": coreSpec, "v2alpha1.batch": batchSpec})
}

func TestUnmanagedAPIServicesAreNotChanged(t *testing.T) {
	mine := appsSpec
	mine.GroupPriorityMinimum = 1
	foo := fooSpec
	foo.VersionPriority = 1
	f := start(t, apiService("v1.apps", "", mine), apiService("v1.example.com", "", foo))
	f.crds.Add(crd("foos.example.com", "example.com", served))
	f.registrar.SetServed([]schema.GroupVersion{coreV1, appsV1, extensionsV1})
	f.is(specs{"v1.": coreSpec, "v1.apps": mine, "v1.apiextensions.k8s.io": extensionsSpec, "v1.example.com": foo})
}

func TestCRDsComeAndGo(t *testing.T) {
	f := start(t)
	f.crds.Add(crd("foos.example.com", "example.com", served, unserved))
	f.crds.Add(crd("bars.example.com", "example.com", served))
	f.is(specs{"v1.example.com": fooSpec})

	f.crds.Delete(crd("foos.example.com", "example.com"))
	f.crds.Modify(crd("bars.example.com", "example.com", served, apiextensionsv1.CustomResourceDefinitionVersion{Name: "v2", Served: true}))
	second := fooSpec
	second.Version = "v2"
	f.is(specs{"v1.example.com": fooSpec, "v2.example.com": second})

	f.crds.Delete(crd("bars.example.com", "example.com"))
	f.is(specs{})
}

func TestAPIServicesOfCRDsAreCorrected(t *testing.T) {
	f := start(t, apiService("v1.gone.example.com", always, apiregistrationv1.APIServiceSpec{Group: "gone.example.com", Version: "v1", GroupPriorityMinimum: 1, VersionPriority: 1}))
	f.crds.Add(crd("foos.example.com", "example.com", served))
	f.is(specs{"v1.example.com": fooSpec})
	if err := f.client.ApiregistrationV1().APIServices().Delete(t.Context(), "v1.example.com", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	f.is(specs{"v1.example.com": fooSpec})
}

func TestReady(t *testing.T) {
	f := start(t)
	if err := f.registrar.Ready(); err == nil {
		t.Error("ready before anything is known")
	}
	f.registrar.SetServed([]schema.GroupVersion{coreV1, extensionsV1})
	f.is(specs{"v1.": coreSpec, "v1.apiextensions.k8s.io": extensionsSpec})
	if got, want := f.registrar.Ready().Error(), "missing APIService: [v1. v1.apiextensions.k8s.io]"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	for _, name := range []string{"v1.", "v1.apiextensions.k8s.io"} {
		object, err := f.client.ApiregistrationV1().APIServices().Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		object.Status.Conditions = []apiregistrationv1.APIServiceCondition{{Type: apiregistrationv1.Available, Status: apiregistrationv1.ConditionTrue}}
		if _, err := f.client.ApiregistrationV1().APIServices().UpdateStatus(t.Context(), object, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for deadline := time.Now().Add(10 * time.Second); f.registrar.Ready() != nil; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal(f.registrar.Ready())
		}
	}
}

// The order is that of /apis in kube-apiserver v1.36 with all groups enabled.
func TestGroupOrderIsKubeAPIServers(t *testing.T) {
	want := []string{
		"", "apps", "events.k8s.io", "authentication.k8s.io", "authorization.k8s.io", "autoscaling", "batch",
		"certificates.k8s.io", "networking.k8s.io", "policy", "rbac.authorization.k8s.io", "storage.k8s.io",
		"admissionregistration.k8s.io", "apiextensions.k8s.io", "scheduling.k8s.io", "coordination.k8s.io",
		"node.k8s.io", "discovery.k8s.io", "resource.k8s.io", "flowcontrol.apiserver.k8s.io",
		"internal.apiserver.k8s.io", "storagemigration.k8s.io",
	}
	var got []string
	for name := range builtIn {
		got = append(got, name)
	}
	slices.SortFunc(got, func(a, b string) int {
		if builtIn[a].group != builtIn[b].group {
			return int(builtIn[b].group - builtIn[a].group)
		}
		return slices.Compare([]string{a}, []string{b})
	})
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}
