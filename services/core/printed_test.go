package core

import (
	"encoding/json"
	"math/rand"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/apitesting/fuzzer"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	kubetesting "k8s.io/kubernetes/pkg/api/testing"
	"k8s.io/kubernetes/pkg/printers"
	printersinternal "k8s.io/kubernetes/pkg/printers/internalversion"
	printerstorage "k8s.io/kubernetes/pkg/printers/storage"

	"triune.dev/shared/storage/bytecache"
	"triune.dev/shared/storage/render"
)

// testPrinted checks that the table row and the metadata of an object are the same if the
// fields that no printer reads are not decoded.
func (c *cluster) testPrinted(t *testing.T) {
	convertor := printerstorage.TableConvertor{TableGenerator: printers.NewTableGenerator().With(printersinternal.AddHandlers)}
	for resource, kind := range map[string]string{"pods": "Pod", "nodes": "Node"} {
		t.Run(resource, func(t *testing.T) {
			config := c.stores.of[schema.GroupResource{Resource: resource}]
			version, err := render.New(render.Config{
				Codec: config.codec, New: config.newFunc, NewList: func() runtime.Object { return nil },
				Serializer: legacyscheme.Codecs, Kind: schema.GroupVersionKind{Version: "v1", Kind: kind},
				Attributes: config.attributes, Budget: bytecache.NewBudget(1 << 20),
			})
			if err != nil {
				t.Fatal(err)
			}
			printed := func(obj runtime.Object, err error) (row, whole string) {
				t.Helper()
				if err != nil {
					t.Fatal(err)
				}
				table, err := convertor.ConvertToTable(t.Context(), obj, &metav1.TableOptions{})
				if err != nil {
					t.Fatal(err)
				}
				m, _ := obj.(metav1.ObjectMetaAccessor)
				rows, err := json.Marshal([]any{table.Rows[0].Cells, table.Rows[0].Conditions, m.GetObjectMeta()})
				if err != nil {
					t.Fatal(err)
				}
				all, err := json.Marshal(obj)
				if err != nil {
					t.Fatal(err)
				}
				return string(rows), string(all)
			}
			check := newFieldsCheck(t, schema.GroupResource{Resource: resource}, config)
			fill := fuzzer.FuzzerFor(kubetesting.FuzzerFuncs, rand.NewSource(3), legacyscheme.Codecs)
			rounds, cut := 300, 0
			for range rounds {
				obj := config.newFunc()
				fill.Fill(obj)
				key, stored, err := check.stored(obj)
				if err != nil {
					t.Fatal(err)
				}
				e := bytecache.NewEntry(key, 7, stored)
				want, whole := printed(version.Decode(e, 7))
				got, part := printed(version.DecodePrinted(e, 7))
				if diff := cmp.Diff(want, got); diff != "" {
					t.Fatalf("%s (-whole object +what is printed of it):\n%s", stored, diff)
				}
				if len(part) < len(whole) {
					cut++
				}
				// The same holds for damaged bytes that can be decoded.
				broken := bytecache.NewEntry(key, 7, check.damaged(stored))
				if obj, err := version.Decode(broken, 7); err == nil {
					want, _ := printed(obj, nil)
					if got, _ := printed(version.DecodePrinted(broken, 7)); got != want {
						t.Fatalf("%q: %s, want %s", broken.Data(), got, want)
					}
				}
			}
			// Some kinds have no such fields.
			if cut < rounds/6 {
				t.Errorf("only %d of %d objects were decoded without what nobody prints", cut, rounds)
			}
		})
	}
}
