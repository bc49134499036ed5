package etcdstore

import (
	"fmt"
	"reflect"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/conversion"
	"k8s.io/apimachinery/pkg/runtime"
)

// listItems fills the Items of a list object. Objects are decoded into their places in the
// list, so that none is copied.
type listItems struct {
	slice reflect.Value
	// apiVersion is set in new unstructured items, since their codec depends on it.
	apiVersion string
	count      int
}

func newListItems(list runtime.Object) (*listItems, error) {
	ptr, err := meta.GetItemsPtr(list)
	if err != nil {
		return nil, err
	}
	v, err := conversion.EnforcePtr(ptr)
	if err != nil {
		return nil, fmt.Errorf("items of %T: %w", list, err)
	}
	if v.Kind() != reflect.Slice {
		return nil, fmt.Errorf("items of %T: a %s, not a slice", list, v.Kind())
	}
	it := &listItems{slice: v}
	if u, ok := list.(*unstructured.UnstructuredList); ok {
		it.apiVersion = u.GetAPIVersion()
	}
	v.SetLen(0)
	return it, nil
}

// grow reserves space for n more items.
func (it *listItems) grow(n int) {
	if free := it.slice.Cap() - it.count; free < n {
		it.slice.Grow(n)
	}
}

// next returns an empty object after the end of the list. Unless accept is called, the next
// call returns it again.
func (it *listItems) next() runtime.Object {
	it.grow(1)
	it.slice.SetLen(it.count + 1)
	place := it.slice.Index(it.count)
	place.SetZero()
	it.slice.SetLen(it.count)
	obj := place.Addr().Interface().(runtime.Object)
	if u, ok := obj.(*unstructured.Unstructured); ok && it.apiVersion != "" {
		u.Object = map[string]any{"apiVersion": it.apiVersion}
	}
	return obj
}

// accept appends obj, which is the result of next or was decoded instead of it.
func (it *listItems) accept(obj runtime.Object) {
	it.slice.SetLen(it.count + 1)
	place := it.slice.Index(it.count)
	if place.Addr().Interface() != any(obj) {
		place.Set(reflect.ValueOf(obj).Elem())
	}
	it.count++
}

// finish makes an empty list [] instead of null, and clears an object that was decoded but
// not accepted.
func (it *listItems) finish() {
	if it.slice.IsNil() {
		it.slice.Set(reflect.MakeSlice(it.slice.Type(), 0, 0))
		return
	}
	if it.count < it.slice.Cap() {
		it.slice.SetLen(it.count + 1)
		it.slice.Index(it.count).SetZero()
	}
	it.slice.SetLen(it.count)
}
