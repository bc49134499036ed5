package crd

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
)

// recorder records its calls.
type recorder struct{ calls []string }

func (r *recorder) Put(crd *apiextensionsv1.CustomResourceDefinition) {
	r.calls = append(r.calls, "put "+string(crd.UID)+"/"+crd.ResourceVersion)
}

func (r *recorder) Remove(crd *apiextensionsv1.CustomResourceDefinition) {
	r.calls = append(r.calls, "remove "+string(crd.UID)+"/"+crd.ResourceVersion)
}

func definition(uid, version string) *apiextensionsv1.CustomResourceDefinition {
	return &apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{UID: types.UID(uid), ResourceVersion: version}}
}

func TestEvents(t *testing.T) {
	tests := []struct {
		name string
		do   func(events)
		want []string
	}{
		{"an add", func(e events) { e.OnAdd(definition("a", "1"), true) }, []string{"put a/1"}},
		{"an update", func(e events) { e.OnUpdate(definition("a", "1"), definition("a", "2")) }, []string{"put a/2"}},
		{"a resync", func(e events) { e.OnUpdate(definition("a", "1"), definition("a", "1")) }, nil},
		{
			"a replacement that was missed", func(e events) { e.OnUpdate(definition("a", "1"), definition("b", "5")) },
			[]string{"remove a/1", "put b/5"},
		},
		{"a delete", func(e events) { e.OnDelete(definition("a", "1")) }, []string{"remove a/1"}},
		{
			"a delete that was missed", func(e events) {
				e.OnDelete(cache.DeletedFinalStateUnknown{Key: "x", Obj: definition("a", "1")})
			},
			[]string{"remove a/1"},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			first, second := &recorder{}, &recorder{}
			test.do(events{first, second})
			for _, r := range []*recorder{first, second} {
				if diff := cmp.Diff(test.want, r.calls); diff != "" {
					t.Errorf("(-want +got):\n%s", diff)
				}
			}
		})
	}
}
