package customresource

import (
	"bytes"
	"encoding/json"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/conversion"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage"

	"triune.dev/shared/storage/bytecache"
	"triune.dev/shared/storage/render"
)

// codecTest has a kind with the codec under test and a decoder to compare it with.
type codecTest struct {
	codec provingCodec
	// quick asks the codec first, long does not.
	quick, long *render.Version
}

func newWidget() runtime.Object {
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Widget"})
	return u
}

func newCodecTest(t testing.TB, s *apiextensionsv1.JSONSchemaProps, change ...func(*apiextensionsv1.CustomResourceDefinition)) codecTest {
	t.Helper()
	crd := widgets(append([]func(*apiextensionsv1.CustomResourceDefinition){func(crd *apiextensionsv1.CustomResourceDefinition) {
		for i := range crd.Spec.Versions {
			crd.Spec.Versions[i].Schema = &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: s}
		}
	}}, change...)...)
	converters, err := conversion.NewCRConverterFactory(nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	converter, _, err := converters.NewConverter(crd)
	if err != nil {
		t.Fatal(err)
	}
	gv := schema.GroupVersion{Group: crd.Spec.Group, Version: "v1"}
	schemas := newSchemas(crd)
	t.Cleanup(schemas.stop)
	if _, err := schemas.forVersion("v1"); err != nil {
		t.Fatal(err)
	}
	j := codecTest{codec: storageOptions{converter: converter, storedAs: gv, readAs: gv, schemas: schemas}.codec().(provingCodec)}
	version := func(codec runtime.Codec) *render.Version {
		v, err := render.New(render.Config{
			Codec: codec, Kind: gv.WithKind("Widget"), Attributes: storage.DefaultNamespaceScopedAttr, Budget: bytecache.NewBudget(1 << 20),
			New: newWidget, NewList: func() runtime.Object { return &unstructured.UnstructuredList{} },
			Serializer: negotiatedSerializer{mediaTypes: mediaTypes(newTyper(newParameterScheme(gv))), converter: converter, schemas: schemas},
		})
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	j.quick, j.long = version(j.codec), version(j.codec.Codec)
	return j
}

const revision = 7319462850173

// verdict compares the result of the codec for stored bytes with decoding and encoding them.
// The codec may fail to prove that they are identical, but it must not be wrong.
func (j codecTest) verdict(t testing.TB, stored []byte) (proved, identical bool) {
	t.Helper()
	proved = j.codec.Identical(stored)
	sent, err := j.long.Render(bytecache.NewEntry("/key", revision, stored), render.JSON, revision)
	if err == nil {
		at := strings.Index(string(sent), strconv.Itoa(revision))
		key := len(`"resourceVersion":"`)
		without := string(sent[:at-key]) + strings.TrimPrefix(string(sent[at+len(strconv.Itoa(revision))+1:]), ",")
		last := strings.TrimSuffix(string(sent[:at-key]), ",") + string(sent[at+len(strconv.Itoa(revision))+1:])
		identical = without == string(stored) || last == string(stored)
	}
	if proved && !identical {
		t.Fatalf("stored\n%s\nis reported as identical, but is sent as (error %v)\n%s", stored, err, sent)
	}
	e := bytecache.NewEntry("/key", revision, stored)
	quick, quickErr := j.quick.AppendObject(nil, e, render.JSON)
	if (quickErr == nil) != (err == nil) || !bytes.Equal(quick, sent) {
		t.Fatalf("stored\n%s\nsent (error %v)\n%s\nwant (error %v)\n%s", stored, quickErr, quick, err, sent)
	}
	if size, err := j.quick.ItemSize(e, render.JSON); err == nil && size != len(bytes.TrimSuffix(sent, []byte("\n"))) {
		t.Fatalf("stored\n%s\nsize %d of an item, want that of\n%s", stored, size, sent)
	}
	if other, err := j.quick.Render(e, render.JSON, revision+1); err == nil {
		if want := strings.Replace(string(sent), strconv.Itoa(revision), strconv.Itoa(revision+1), 1); string(other) != want {
			t.Fatalf("at another revision\n%s\nwant\n%s", other, want)
		}
	}
	for _, f := range []render.Format{render.MetadataJSON, render.MetadataProtobuf} {
		want, err := j.long.Render(bytecache.NewEntry("/key", revision, stored), f, revision)
		got, gotErr := j.quick.Render(bytecache.NewEntry("/key", revision, stored), f, revision)
		if (gotErr == nil) != (err == nil) || !bytes.Equal(got, want) {
			t.Fatalf("stored\n%s\nmetadata (error %v)\n%s\nwant (error %v)\n%s", stored, gotErr, got, err, want)
		}
	}
	return proved, identical
}

// write encodes an object like a storage that has decoded it before.
func (j codecTest) write(t testing.TB, content map[string]any) []byte {
	t.Helper()
	text, err := json.Marshal(content)
	if err != nil {
		t.Fatal(err)
	}
	obj, _, err := j.codec.Decode(text, nil, newWidget())
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	u := obj.(*unstructured.Unstructured)
	u.SetResourceVersion("")
	stored, err := runtime.Encode(j.codec, u)
	if err != nil {
		t.Fatal(err)
	}
	return stored
}

// Objects that are reported as identical are. Objects written by the storage are reported as
// identical, except for rare forms.
func TestIdenticalIsWhatDecodingAndEncodingGivesBack(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	var healthy, damaged, agreed, doubted int
	for range 100 {
		s := rootSchema(r)
		j := newCodecTest(t, &s)
		root, err := j.codec.schemas.shapeOf("v1")
		if err != nil {
			t.Fatal(err)
		}
		for range 25 {
			stored := j.write(t, anyObject(t, r, &s))
			proved, identical := j.verdict(t, stored)
			if identical && knowable(root) {
				if healthy++; !proved {
					t.Fatalf("not known to be identical:\n%s\nschema %s", stored, raw(s).Raw)
				}
			}
			for range 4 {
				damaged++
				proved, identical := j.verdict(t, damage(r, stored))
				if proved {
					agreed++
				} else if identical && knowable(root) {
					doubted++
				}
			}
		}
	}
	t.Logf("%d objects as written and %d of %d damaged ones are identical, and %d that are not known to be", healthy, agreed, damaged, doubted)
	if healthy < 1500 || agreed < 1000 {
		t.Errorf("%d objects and %d damaged ones are identical: too few to say anything", healthy, agreed)
	}
	if doubted*4 > agreed {
		t.Errorf("%d damaged objects are identical, and %d more that are not known to be", agreed, doubted)
	}
}

// knowable reports whether no part of a shape is unprovable.
func knowable(s *shape) bool {
	if s == nil || s.unprovable {
		return false
	}
	below := []*shape{s.items, s.additional}
	for _, p := range s.properties {
		below = append(below, p.shape)
	}
	return !slices.ContainsFunc(below, func(s *shape) bool { return s != nil && !knowable(s) })
}

// widgetSchema has defaults, lists and conditions; widgetObject is an object of 2 kB.
const widgetSchema = `{"type":"object","properties":{
	"spec":{"type":"object","properties":{
		"replicas":{"type":"integer","default":1},
		"paused":{"type":"boolean","default":false},
		"strategy":{"type":"object","default":{},"properties":{"type":{"type":"string","default":"RollingUpdate"},"surge":{"x-kubernetes-int-or-string":true}}},
		"selector":{"type":"object","additionalProperties":{"type":"string"}},
		"containers":{"type":"array","items":{"type":"object","properties":{
			"name":{"type":"string"},"image":{"type":"string"},"policy":{"type":"string","default":"Always"},"terminal":{"type":"boolean"},
			"ports":{"type":"array","items":{"type":"object","properties":{"port":{"type":"integer"},"protocol":{"type":"string","default":"TCP"}}}},
			"env":{"type":"array","items":{"type":"object","properties":{"name":{"type":"string"},"value":{"type":"string"}}}}}}},
		"template":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}},
	"status":{"type":"object","properties":{
		"ready":{"type":"integer"},"observedGeneration":{"type":"integer"},"load":{"type":"number"},
		"conditions":{"type":"array","items":{"type":"object","properties":{
			"type":{"type":"string"},"status":{"type":"string"},"reason":{"type":"string"},"message":{"type":"string"},
			"lastTransitionTime":{"type":"string"},"observedGeneration":{"type":"integer"}}}}}}}}`

const widgetObject = `{"apiVersion":"example.com/v1","kind":"Widget",
	"metadata":{"name":"widget-0001","namespace":"team-a","uid":"5f0c3d6e-1d6f-4c5e-9d1a-0a3b8f6f2d11","generation":4,"creationTimestamp":"2026-01-02T03:04:05Z",
		"labels":{"app.kubernetes.io/name":"widget","app.kubernetes.io/part-of":"benchmark"},
		"annotations":{"kubectl.kubernetes.io/last-applied-configuration":"{\"apiVersion\":\"example.com/v1\",\"kind\":\"Widget\",\"metadata\":{\"name\":\"widget-0001\"},\"spec\":{\"replicas\":3,\"containers\":[{\"name\":\"main\",\"image\":\"registry.example.com/main:1.2.3\"}]}}\n"},
		"managedFields":[
			{"manager":"kubectl-client-side-apply","operation":"Update","apiVersion":"example.com/v1","time":"2026-01-02T03:04:05Z","fieldsType":"FieldsV1","fieldsV1":{"f:metadata":{"f:annotations":{".":{},"f:kubectl.kubernetes.io/last-applied-configuration":{}}},"f:spec":{".":{},"f:containers":{},"f:replicas":{}}}},
			{"manager":"widget-controller","operation":"Update","apiVersion":"example.com/v1","time":"2026-01-02T03:05:05Z","fieldsType":"FieldsV1","subresource":"status","fieldsV1":{"f:status":{".":{},"f:conditions":{".":{},"k:{\"type\":\"Ready\"}":{".":{},"f:status":{},"f:type":{}}},"f:ready":{}}}}]},
	"spec":{"replicas":3,"selector":{"app":"widget","tier":"back"},
		"containers":[{"name":"main","image":"registry.example.com/main:1.2.3","ports":[{"port":8080},{"port":9090,"protocol":"UDP"}],"env":[{"name":"LEVEL","value":"info"},{"name":"TOKEN_FILE","value":"/var/run/token"}]},
			{"name":"proxy","image":"registry.example.com/proxy:4.5.6","policy":"IfNotPresent","ports":[{"port":443}]}],
		"template":{"anything":[1,2,{"goes":true}]}},
	"status":{"ready":3,"observedGeneration":4,"load":0.75,"conditions":[
		{"type":"Ready","status":"True","reason":"AllReady","message":"3 of 3 replicas are ready","lastTransitionTime":"2026-01-02T03:05:05Z","observedGeneration":4},
		{"type":"Progressing","status":"False","reason":"Done","message":"nothing to do","lastTransitionTime":"2026-01-02T03:05:05Z","observedGeneration":4}]}}`

func usualWidget(t testing.TB) (codecTest, []byte) {
	t.Helper()
	var s apiextensionsv1.JSONSchemaProps
	if err := json.Unmarshal([]byte(widgetSchema), &s); err != nil {
		t.Fatal(err)
	}
	j := newCodecTest(t, &s)
	return j, j.write(t, decoded(t, widgetObject))
}

func TestIdenticalDoesNotAllocate(t *testing.T) {
	j, stored := usualWidget(t)
	if proved, _ := j.verdict(t, stored); !proved {
		t.Fatalf("not known to be identical: %s", stored)
	}
	if n := testing.AllocsPerRun(100, func() { j.codec.Identical(stored) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// Objects that are converted, or have no structural schema, are decoded.
func TestIdenticalKnowsNothing(t *testing.T) {
	_, stored := usualWidget(t)
	var s apiextensionsv1.JSONSchemaProps
	if err := json.Unmarshal([]byte(widgetSchema), &s); err != nil {
		t.Fatal(err)
	}
	bare := newCodecTest(t, nil)
	preserving := newCodecTest(t, &s, func(crd *apiextensionsv1.CustomResourceDefinition) { crd.Spec.PreserveUnknownFields = true })
	another := newCodecTest(t, &s)
	another.codec.version, another.codec.apiVersion = "v1beta1", "example.com/v1beta1"
	for name, j := range map[string]codecTest{"of objects without a schema": bare, "where unknown fields are preserved": preserving, "of another version": another} {
		if j.codec.Identical(stored) {
			t.Errorf("%s something is known", name)
		}
	}
	bare.verdict(t, stored)
	preserving.verdict(t, stored)
}

// A schema may have defaults for metadata, which are set after the check that it is
// well-formed.
func TestIdenticalMindsDefaultsInMetadata(t *testing.T) {
	const defaulting = `{"type":"object","properties":{"generateName":{"type":"string","default":"x"}}}`
	tests := map[string]struct{ schema, rest string }{
		"of the object":               {`{"type":"object","properties":{"metadata":` + defaulting + `}}`, ``},
		"of any member of it":         {`{"type":"object","additionalProperties":` + defaulting + `}`, ``},
		"of an embedded object":       {`{"type":"object","properties":{"x":{"type":"object","x-kubernetes-embedded-resource":true,"x-kubernetes-preserve-unknown-fields":true,"properties":{"metadata":` + defaulting + `}}}}`, `,"x":{"metadata":{"name":"y"}}`},
		"of any member of it in turn": {`{"type":"object","properties":{"x":{"type":"object","x-kubernetes-embedded-resource":true,"additionalProperties":` + defaulting + `}}}`, `,"x":{"metadata":{"name":"y"}}`},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			var s apiextensionsv1.JSONSchemaProps
			if err := json.Unmarshal([]byte(test.schema), &s); err != nil {
				t.Fatal(err)
			}
			stored := `{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"generation":1,"name":"n","uid":"1"}` + test.rest + "}\n"
			if proved, identical := newCodecTest(t, &s).verdict(t, []byte(stored)); proved || identical {
				t.Errorf("proved to be identical: %v, is: %v", proved, identical)
			}
		})
	}
}

// Reads of identical objects need no schema.
func TestIdenticalDoesNotKeepTheSchema(t *testing.T) {
	j, stored := usualWidget(t)
	schemas := j.codec.schemas
	schemas.shapes.sweep()
	j.codec.Identical(stored)
	for range 2 {
		schemas.structural.sweep()
		j.codec.Identical(stored)
	}
	if schemas.structural.value.Load() != nil {
		t.Error("the schema is kept")
	}
}

// Very deep objects are decoded, which fails for even deeper ones.
func TestIdenticalEndsSomewhere(t *testing.T) {
	s := apiextensionsv1.JSONSchemaProps{Type: "object", XPreserveUnknownFields: yes()}
	j := newCodecTest(t, &s)
	for _, depth := range []int{1, maxDepth - 2, maxDepth, 1 << 20} {
		for _, brackets := range [][2]string{{"[", "]"}, {`{"a":`, "}"}} {
			text := strings.Repeat(brackets[0], depth) + "1" + strings.Repeat(brackets[1], depth)
			stored := `{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"generation":1,"uid":"1"},"x":` + text + "}\n"
			if got, want := j.codec.Identical([]byte(stored)), depth < maxDepth; got != want {
				t.Errorf("%d times %s: %v, want %v", depth, brackets[0], got, want)
			}
		}
	}
}

func FuzzIdentical(f *testing.F) {
	j, stored := usualWidget(f)
	f.Add(stored)
	f.Add([]byte(nil))
	r := rand.New(rand.NewPCG(5, 6))
	for range 200 {
		f.Add(damage(r, stored))
	}
	f.Fuzz(func(t *testing.T, stored []byte) { j.verdict(t, stored) })
}

// BenchmarkIdentical compares the proof that an object of 2 kB is sent as it is stored with
// decoding and encoding it:
//
//	go test -run '^$' -bench Identical -cpu 1 ./services/extensions/internal/customresource
func BenchmarkIdentical(b *testing.B) {
	j, stored := usualWidget(b)
	b.Logf("%d bytes", len(stored))
	b.Run("looked at", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if !j.codec.Identical(stored) {
				b.Fatal("not identical")
			}
		}
	})
	b.Run("decoded and encoded", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := j.long.Render(bytecache.NewEntry("/key", revision, stored), render.JSON, revision); err != nil {
				b.Fatal(err)
			}
		}
	})
	for name, version := range map[string]*render.Version{"metadata alone decoded": j.quick, "all decoded for metadata": j.long} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := version.Render(bytecache.NewEntry("/key", revision, stored), render.MetadataProtobuf, revision); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
