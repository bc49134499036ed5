package core

import (
	"bytes"
	"maps"
	"math/rand"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/apitesting/fuzzer"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"
	"k8s.io/client-go/tools/cache"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	kubetesting "k8s.io/kubernetes/pkg/api/testing"
	"k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/registry/core/pod"

	"triune.dev/shared/storage/bytecache"
	"triune.dev/shared/storage/etcdstore"
	"triune.dev/shared/storage/eventlog"
	"triune.dev/shared/storage/kv"
)

// stores records the options with which the registry makes its storages.
type stores struct {
	generic.RESTOptionsGetter
	of map[schema.GroupResource]storeConfig
}

type storeConfig struct {
	codec      runtime.Codec
	newFunc    func() runtime.Object
	attributes storage.AttrFunc
	cache      *bytecache.Cache
}

func (s stores) GetRESTOptions(resource schema.GroupResource, example runtime.Object) (generic.RESTOptions, error) {
	options, err := s.RESTOptionsGetter.GetRESTOptions(resource, example)
	decorate := options.Decorator
	options.Decorator = func(c *storagebackend.ConfigForResource, prefix string, key func(runtime.Object) (string, error), newFunc, newList func() runtime.Object,
		attributes storage.AttrFunc, triggers storage.IndexerFuncs, indexers *cache.Indexers) (storage.Interface, factory.DestroyFunc, error) {
		made, destroy, err := decorate(c, prefix, key, newFunc, newList, attributes, triggers, indexers)
		if store, ok := made.(*etcdstore.Store); ok {
			s.of[c.GroupResource] = storeConfig{c.Codec, newFunc, attributes, store.Cache()}
		}
		return made, destroy, err
	}
	return options, err
}

// countedCodec counts the objects that it decodes.
type countedCodec struct {
	runtime.Codec
	decoded int
}

func (c *countedCodec) Decode(data []byte, defaults *schema.GroupVersionKind, into runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	c.decoded++
	return c.Codec.Decode(data, defaults, into)
}

// fieldsCheck compares the fields from stored bytes with those of decoded objects.
type fieldsCheck struct {
	storeConfig
	counted *countedCodec
	options bytecache.Options
	random  *rand.Rand
}

func newFieldsCheck(t testing.TB, resource schema.GroupResource, c storeConfig) *fieldsCheck {
	t.Helper()
	check := &fieldsCheck{storeConfig: c, counted: &countedCodec{Codec: c.codec}, random: rand.New(rand.NewSource(int64(len(resource.Resource))))}
	var err error
	check.options, err = etcdstore.CacheOptions(etcdstore.CacheConfig{Codec: check.counted, Attributes: c.attributes, Selectable: selectable[resource], NewFunc: c.newFunc})
	if err != nil {
		t.Fatal(err)
	}
	return check
}

// compare reports whether the fields were found without decoding stored. It then checks
// them.
func (c *fieldsCheck) compare(t *testing.T, key string, stored []byte) (plain bool) {
	t.Helper()
	c.counted.decoded = 0
	got, err := c.options.Fields(bytecache.NewEntry(key, 1, stored))
	plain = c.counted.decoded == 0
	obj, _, decodeErr := c.codec.Decode(stored, nil, nil)
	if decodeErr != nil {
		if !plain && err == nil {
			t.Fatalf("%q: cannot be decoded, and was: %v", stored, decodeErr)
		}
		return plain
	}
	_, want, wantErr := c.attributes(obj)
	if err != nil || wantErr != nil || !maps.Equal(got, want) {
		t.Fatalf("%q (plain: %t):\ngot  %v, %v\nwant %v, %v", stored, plain, got, err, want, wantErr)
	}
	return plain
}

// stored returns the stored bytes of an object that was decoded and encoded once, like every
// object of a client.
func (c *fieldsCheck) stored(obj runtime.Object) (key string, stored []byte, err error) {
	first, err := runtime.Encode(c.codec, obj)
	if err != nil {
		return "", nil, err
	}
	again, _, err := c.codec.Decode(first, nil, nil)
	if err != nil {
		return "", nil, err
	}
	stored, err = runtime.Encode(c.codec, again)
	if err != nil {
		return "", nil, err
	}
	of, err := meta.Accessor(obj)
	if err != nil {
		return "", nil, err
	}
	return "/registry/x/" + of.GetNamespace() + "/" + of.GetName(), stored, nil
}

// testSelectableFields checks that fields from stored bytes equal those of the decoded
// object, whatever is stored, and that ordinary objects need not be decoded.
func (c *cluster) testSelectableFields(t *testing.T) {
	for resource := range selectable {
		if _, ok := c.stores.of[resource]; !ok {
			t.Errorf("%s is in no storage", resource)
		}
	}
	for resource, config := range c.stores.of {
		t.Run(resource.String(), func(t *testing.T) {
			rounds := 100
			if _, ok := selectable[resource]; ok {
				rounds = 2000
			}
			if testing.Short() {
				rounds /= 10
			}
			newFieldsCheck(t, resource, config).many(t, rounds)
		})
	}
	t.Run("without decoding", func(t *testing.T) {
		// The caches of a running server do so.
		config := c.stores.of[schema.GroupResource{Resource: "pods"}]
		stored := undecodable(t, config.codec)
		if _, _, err := config.codec.Decode(stored, nil, nil); err == nil {
			t.Error("it can be decoded")
		}
		fields, err := config.cache.FieldsOf(bytecache.NewEntry("/registry/pods/default/x", 1, stored))
		if err != nil || fields["spec.nodeName"] != ordinaryPod().Spec.NodeName {
			t.Errorf("fields %v, %v", fields, err)
		}
	})
}

// testCaches checks that all resources of core have a cache, and that their keys belong to
// core and its stream.
func (c *cluster) testCaches(t *testing.T) {
	routes := eventlog.NewRoutes(eventlog.DefaultCluster, "/registry")
	for resource, config := range c.stores.of {
		if config.cache == nil {
			t.Errorf("%s has no cache", resource)
		} else if route, one := routes.PrefixRoute(config.cache.Prefix()); !one || route.Tier != eventlog.Core {
			t.Errorf("%s, below %s: route %+v", resource, config.cache.Prefix(), route)
		} else if !slices.ContainsFunc(routes.Ranges(eventlog.Core), func(keys kv.KeyRange) bool { return strings.HasPrefix(config.cache.Prefix(), keys.Key) }) {
			t.Errorf("%s, below %s, is missing in builtInResources of shared/storage/eventlog/ranges.go", resource, config.cache.Prefix())
		}
	}
}

func (c *fieldsCheck) many(t *testing.T, rounds int) {
	fill := fuzzer.FuzzerFor(kubetesting.FuzzerFuncs, c.random, legacyscheme.Codecs)
	ordinary := 0
	for range rounds {
		obj := c.newFunc()
		fill.Fill(obj)
		key, stored, err := c.stored(obj)
		if err != nil {
			t.Fatal(err)
		}
		if c.compare(t, key, stored) {
			ordinary++
		}
		c.compare(t, key, c.damaged(stored))
		c.compare(t, key, c.rebuilt(t, stored))
	}
	// Some have empty strings in unusual places.
	if ordinary*10 < rounds*9 {
		t.Errorf("%d of %d ordinary objects had to be decoded", rounds-ordinary, rounds)
	}
}

func podStore(t testing.TB) storeConfig {
	t.Helper()
	info, ok := runtime.SerializerInfoForMediaType(legacyscheme.Codecs.SupportedMediaTypes(), runtime.ContentTypeProtobuf)
	if !ok {
		t.Fatal("no protobuf")
	}
	return storeConfig{
		codec: legacyscheme.Codecs.CodecForVersions(info.Serializer, legacyscheme.Codecs.UniversalDeserializer(),
			corev1.SchemeGroupVersion, schema.GroupVersions{core.SchemeGroupVersion}),
		newFunc: func() runtime.Object { return &core.Pod{} }, attributes: pod.GetAttrs,
	}
}

// ordinaryPod returns a running pod.
func ordinaryPod() *corev1.Pod {
	return &corev1.Pod{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{
			Name: "web-7d4b9c6f5d-x2x7p", Namespace: "default", UID: "3f1c5a86-9a3e-4ec3-8f0e-0d5c5a3d7c11", GenerateName: "web-7d4b9c6f5d-",
			Labels:        map[string]string{"app": "web", "pod-template-hash": "7d4b9c6f5d"},
			ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "kubelet", FieldsV1: &metav1.FieldsV1{Raw: bytes.Repeat([]byte("{}"), 400)}}},
		},
		Spec: corev1.PodSpec{
			NodeName: "node-17", RestartPolicy: corev1.RestartPolicyAlways, SchedulerName: "default-scheduler", ServiceAccountName: "web", DeprecatedServiceAccount: "web",
			Volumes: []corev1.Volume{{Name: "token"}},
			Containers: []corev1.Container{{Name: "web", Image: "registry.example.com/web:1.2.3", Ports: []corev1.ContainerPort{{ContainerPort: 8080}},
				Env: slices.Repeat([]corev1.EnvVar{{Name: "A_VARIABLE", Value: "with a value"}}, 20)}},
		},
		Status: corev1.PodStatus{
			Phase: corev1.PodRunning, PodIP: "10.1.2.3", PodIPs: []corev1.PodIP{{IP: "10.1.2.3"}, {IP: "fd00::123"}}, HostIP: "10.0.0.17",
			Conditions:        slices.Repeat([]corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}, 5),
			ContainerStatuses: []corev1.ContainerStatus{{Name: "web", Ready: true, Image: "registry.example.com/web:1.2.3"}},
		},
	}
}

// TestSelectableFieldsOfPods checks pods without defaulted fields, and pods with older names
// of fields.
func TestSelectableFieldsOfPods(t *testing.T) {
	c := newFieldsCheck(t, schema.GroupResource{Resource: "pods"}, podStore(t))
	raw := protobuf.NewSerializer(legacyscheme.Scheme, legacyscheme.Scheme)
	for name, tc := range map[string]struct {
		change func(*corev1.Pod)
		plain  bool
	}{
		"ordinary":                        {func(*corev1.Pod) {}, true},
		"on no node":                      {func(p *corev1.Pod) { p.Spec.NodeName, p.Status = "", corev1.PodStatus{Phase: corev1.PodPending} }, true},
		"host network":                    {func(p *corev1.Pod) { p.Spec.HostNetwork = true }, true},
		"a security context":              {func(p *corev1.Pod) { p.Spec.SecurityContext = &corev1.PodSecurityContext{} }, true},
		"nominated":                       {func(p *corev1.Pod) { p.Status.NominatedNodeName = "node-18" }, true},
		"no phase":                        {func(p *corev1.Pod) { p.Status.Phase = "" }, true},
		"no service account":              {func(p *corev1.Pod) { p.Spec.ServiceAccountName, p.Spec.DeprecatedServiceAccount = "", "" }, true},
		"only the older service account":  {func(p *corev1.Pod) { p.Spec.ServiceAccountName = "" }, true},
		"only the newer service account":  {func(p *corev1.Pod) { p.Spec.DeprecatedServiceAccount = "" }, true},
		"another older service account":   {func(p *corev1.Pod) { p.Spec.DeprecatedServiceAccount = "other" }, true},
		"no podIPs":                       {func(p *corev1.Pod) { p.Status.PodIPs = nil }, true},
		"podIPs that begin with another":  {func(p *corev1.Pod) { p.Status.PodIPs[0].IP = "10.9.9.9" }, true},
		"podIPs of one without podIP":     {func(p *corev1.Pod) { p.Status.PodIP, p.Status.PodIPs = "", p.Status.PodIPs[:1] }, true},
		"podIPs without podIP":            {func(p *corev1.Pod) { p.Status.PodIP = "" }, false},
		"an empty podIP, then another":    {func(p *corev1.Pod) { p.Status.PodIP, p.Status.PodIPs[0].IP = "", "" }, false},
		"no restart policy":               {func(p *corev1.Pod) { p.Spec.RestartPolicy = "" }, false},
		"no scheduler":                    {func(p *corev1.Pod) { p.Spec.SchedulerName = "" }, false},
		"no spec":                         {func(p *corev1.Pod) { p.Spec = corev1.PodSpec{} }, false},
		"a long name that is not the key": {func(p *corev1.Pod) { p.Name = "another" }, true},
		"no name":                         {func(p *corev1.Pod) { p.Name, p.Namespace = "", "" }, true},
		"another version":                 {func(p *corev1.Pod) { p.APIVersion = "v2" }, false},
		"another kind":                    {func(p *corev1.Pod) { p.Kind = "PodTemplate" }, false},
	} {
		t.Run(name, func(t *testing.T) {
			p := ordinaryPod()
			tc.change(p)
			var stored bytes.Buffer
			if err := raw.Encode(p, &stored); err != nil {
				t.Fatal(err)
			}
			if p.APIVersion == "v2" || p.Kind != "Pod" {
				if _, err := c.options.Fields(bytecache.NewEntry("k", 1, stored.Bytes())); err == nil {
					t.Error("fields of what is not a pod")
				}
				return
			}
			if plain := c.compare(t, "/registry/pods/default/web-7d4b9c6f5d-x2x7p", stored.Bytes()); plain != tc.plain {
				t.Errorf("read from stored bytes: %t, want %t", plain, tc.plain)
			}
		})
	}
	t.Run("as JSON", func(t *testing.T) {
		if c.compare(t, "k", []byte(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a"},"spec":{"nodeName":"b"}}`)) {
			t.Error("read from JSON")
		}
	})
}

// Reproduce with: go test -run '^$' -bench SelectableFields ./services/core
func BenchmarkSelectableFields(b *testing.B) {
	c := newFieldsCheck(b, schema.GroupResource{Resource: "pods"}, podStore(b))
	stored, err := runtime.Encode(c.codec, ordinaryPod())
	if err != nil {
		b.Fatal(err)
	}
	decoded, err := etcdstore.CacheOptions(etcdstore.CacheConfig{Codec: c.codec, Attributes: c.attributes})
	if err != nil {
		b.Fatal(err)
	}
	e := bytecache.NewEntry("/registry/pods/default/web-7d4b9c6f5d-x2x7p", 1, stored)
	for name, options := range map[string]bytecache.Options{"stored bytes": c.options, "decoded": decoded} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := options.Fields(e); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
