package reads

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/apiserver/pkg/registry/rest"
)

// sorting is a printer that changes the order of a list.
type sorting struct{ rest.TableConvertor }

func (c sorting) ConvertToTable(ctx context.Context, obj, options runtime.Object) (*metav1.Table, error) {
	table, err := c.TableConvertor.ConvertToTable(ctx, obj, options)
	if err == nil {
		slices.Reverse(table.Rows)
	}
	return table, err
}

// ageing is a printer of ages.
type ageing struct{ rest.TableConvertor }

func (c ageing) ConvertToTable(ctx context.Context, obj, options runtime.Object) (*metav1.Table, error) {
	table, err := c.TableConvertor.ConvertToTable(ctx, obj, options)
	if err == nil {
		for i := range table.Rows {
			created := table.Rows[i].Object.Object.(*corev1.Pod).CreationTimestamp
			table.Rows[i].Cells = append(table.Rows[i].Cells, duration.HumanDuration(time.Since(created.Time)))
		}
	}
	return table, err
}

const asTable = "application/json;as=Table;g=meta.k8s.io;v=v1"

// TestSortedTableGoesToFallback checks that upstream's handler serves the tables of a
// printer that sorts.
func TestSortedTableGoesToFallback(t *testing.T) {
	w := newWorld(t)
	pods := w.pods(t, func(c *kindConfig) { c.tables = sorting{rest.NewDefaultTableConvertor(c.gvr.GroupResource())} })
	for i := range 5 {
		pods.create(t, pod("default", fmt.Sprintf("n%03d", i), i+1))
	}
	pods.settle(t)
	for range 2 {
		if _, fell := pods.compare(t, "/api/v1/pods", accept(asTable)); !fell {
			t.Error("the fallback has not been asked")
		}
	}
}

// TestCachedRowsShowCurrentAge checks that a cached row shows the current age of the
// object.
func TestCachedRowsShowCurrentAge(t *testing.T) {
	w := newWorld(t)
	pods := w.pods(t, func(c *kindConfig) { c.tables = ageing{rest.NewDefaultTableConvertor(c.gvr.GroupResource())} })
	var created time.Time
	for i := range 5 {
		created = pods.create(t, pod("default", fmt.Sprintf("n%03d", i), i+1)).(*corev1.Pod).CreationTimestamp.Time
	}
	pods.settle(t)
	seen := map[string]bool{}
	for len(seen) < 4 {
		before := duration.HumanDuration(time.Since(created))
		a := ask(t, pods.ours, "/api/v1/pods", accept(asTable))
		after := duration.HumanDuration(time.Since(created))
		var table metav1.Table
		if err := json.Unmarshal(a.body, &table); err != nil {
			t.Fatal(err)
		}
		if got := table.Rows[4].Cells[2]; got != before && got != after {
			t.Fatalf("age %v, want %s or %s", got, before, after)
		}
		seen[after] = true
	}
	if pods.fallbacks.Load() != 0 {
		t.Error("the fallback has been asked")
	}
}

// TestEncodeRowEqualsMarshal checks that encodeRow returns the same as encoding the row as
// a whole.
func TestEncodeRowEqualsMarshal(t *testing.T) {
	object := pod("default", "<a>&\u2028", 3)
	object.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "m", FieldsV1: &metav1.FieldsV1{Raw: []byte(`{ "f:a" : {} }`)}}}
	for name, row := range map[string]metav1.TableRow{
		"an object":       {Cells: []any{"a", int64(1), nil}, Object: runtime.RawExtension{Object: object}},
		"conditions":      {Cells: []any{"null}"}, Conditions: []metav1.TableRowCondition{{Type: metav1.RowCompleted}}, Object: runtime.RawExtension{Object: object}},
		"no object":       {Cells: []any{"a"}},
		"encoded already": {Cells: []any{"a"}, Object: runtime.RawExtension{Raw: []byte(`{"a":null}`)}},
		"both":            {Cells: []any{"a"}, Object: runtime.RawExtension{Raw: []byte(`{"a":{"b":1}}`), Object: object}},
	} {
		want, err := json.Marshal(&row)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := encodeRow(&row, nil); err != nil || string(got) != string(want) {
			t.Errorf("%s: %s, %v\nwant %s", name, got, err, want)
		}
	}
	row := metav1.TableRow{Cells: []any{"a"}, Object: runtime.RawExtension{Object: object}}
	if got, err := encodeRow(&row, []byte(`{"added":1}`)); err != nil || string(got) != `{"cells":["a"],"object":{"added":1}}` {
		t.Errorf("with a given object: %s, %v", got, err)
	}
}
