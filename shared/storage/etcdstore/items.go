package etcdstore

import (
	"fmt"
	"reflect"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/conversion"
	"k8s.io/apimachinery/pkg/runtime"
)

// items fills the Items of a list object. An object is decoded into the place
// it will have in the list, so that none is copied.
type items struct {
	slice reflect.Value
	// apiVersion is given to new unstructured items, whose codec goes by it.
	apiVersion string
	count      int
}

func newItems(list runtime.Object) (*items, error) {
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
	it := &items{slice: v}
	if u, ok := list.(*unstructured.UnstructuredList); ok {
		it.apiVersion = u.GetAPIVersion()
	}
	v.SetLen(0)
	return it, nil
}

// grow makes room for n more items.
func (it *items) grow(n int) {
	if free := it.slice.Cap() - it.count; free < n {
		it.slice.Grow(n)
	}
}

// next returns an empty object at the end of the list. It is part of the list
// once accept is called, and otherwise returned again.
func (it *items) next() runtime.Object {
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

// accept adds obj, which is what next returned or was decoded instead of it.
func (it *items) accept(obj runtime.Object) {
	it.slice.SetLen(it.count + 1)
	place := it.slice.Index(it.count)
	if place.Addr().Interface() != any(obj) {
		place.Set(reflect.ValueOf(obj).Elem())
	}
	it.count++
}

// finish makes an empty list [] rather than null, and clears what was decoded
// but not accepted.
func (it *items) finish() {
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
