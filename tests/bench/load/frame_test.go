package load

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
)

func TestJSONFrames(t *testing.T) {
	long := `{"type":"ADDED","object":{"metadata":{"managedFields":[{"fieldsV1":{"f:resourceVersion":{}}}],"name":"` + strings.Repeat("x", 20<<10) + `","resourceVersion":"7"}}}`
	stream := strings.Join([]string{
		long,
		`{"type":"MODIFIED","object":{"metadata":{"resourceVersion":"8"},"data":{"a":"\"resourceVersion\":\"1\""}}}`,
		`{"type":"ERROR","object":{"kind":"Status","code":410}}`, "",
	}, "\n")
	f := &jsonFrames{r: bufio.NewReaderSize(strings.NewReader(stream), 1<<10)}
	for _, want := range []Event{{"ADDED", 7, len(long) + 1}, {"MODIFIED", 8, 0}, {"ERROR", 0, 0}} {
		got, err := f.next()
		if want.Size == 0 {
			want.Size = got.Size
		}
		if err != nil || got != want {
			t.Errorf("got %+v, %v; want %+v", got, err, want)
		}
	}
	if _, err := f.next(); !errors.Is(err, io.EOF) {
		t.Errorf("the end: %v", err)
	}
	for name, text := range map[string]string{
		"cut":         `{"type":"ADDED","obj`,
		"no revision": `{"type":"ADDED","object":{}}` + "\n",
		"no type":     `{"kind":"Status"}` + "\n",
		"no number":   `{"type":"ADDED","object":{"metadata":{"resourceVersion":"x"}}}` + "\n",
	} {
		f := &jsonFrames{r: bufio.NewReader(strings.NewReader(text))}
		if e, err := f.next(); err == nil || errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("%s: got %+v, %v", name, e, err)
		}
	}
}

// frameOf returns a watch event as k8s.io/apiserver encodes it.
func frameOf(t *testing.T, kind string, o runtime.Object) []byte {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := corev1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	metav1.AddToGroupVersion(scheme, corev1.SchemeGroupVersion)
	codec := protobuf.NewSerializer(scheme, scheme)
	var object, event bytes.Buffer
	if err := codec.Encode(o, &object); err != nil {
		t.Fatal(err)
	}
	if err := codec.Encode(&metav1.WatchEvent{Type: kind, Object: runtime.RawExtension{Raw: object.Bytes()}}, &event); err != nil {
		t.Fatal(err)
	}
	return append(binary.BigEndian.AppendUint32(nil, uint32(event.Len())), event.Bytes()...)
}

func TestProtobufFramesOfKubernetes(t *testing.T) {
	object := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "a", Namespace: "b", UID: "c", ResourceVersion: "1234", Generation: 5, Labels: map[string]string{"x": "y"}},
		Data:       map[string]string{"resourceVersion": "9"},
	}
	stream := append(frameOf(t, "ADDED", object), frameOf(t, "ERROR", &metav1.Status{Code: 410})...)
	f := &protobufFrames{r: bufio.NewReader(bytes.NewReader(stream))}
	var got []Event
	for {
		e, err := f.next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		e.Size = 0
		got = append(got, e)
	}
	if diff := cmp.Diff([]Event{{Type: "ADDED", Revision: 1234}, {Type: "ERROR"}}, got); diff != "" {
		t.Error(diff)
	}
	f = &protobufFrames{r: bufio.NewReader(bytes.NewReader(stream[:len(stream)-3]))}
	_, _ = f.next()
	if _, err := f.next(); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("a cut frame: %v", err)
	}
}

func TestCompareCountsFaults(t *testing.T) {
	want := []uint64{1, 2, 3, 4}
	for name, test := range map[string]struct {
		seen []uint64
		want Faults
	}{
		"all":              {[]uint64{1, 2, 3, 4}, Faults{}},
		"none":             {nil, Faults{Missing: 4}},
		"one is missing":   {[]uint64{1, 2, 4}, Faults{Missing: 1}},
		"the last missing": {[]uint64{1, 2, 3}, Faults{Missing: 1}},
		"repeated":         {[]uint64{1, 2, 2, 3, 4}, Faults{Repeated: 1}},
		"reordered":        {[]uint64{1, 3, 2, 4}, Faults{Reordered: 1}},
		"unknown":          {[]uint64{1, 2, 3, 4, 5}, Faults{Unknown: 1}},
		"back to the past": {[]uint64{1, 2, 3, 4, 1, 2}, Faults{Repeated: 2}},
	} {
		if got := compare(test.seen, want); got != test.want {
			t.Errorf("%s: got %v, want %v", name, got, test.want)
		}
	}
}
