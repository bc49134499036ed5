package openapi

import (
	"reflect"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/kube-openapi/pkg/common"
)

// documented is implemented by versioned API types. SwaggerDoc describes each field, by its
// JSON name.
type documented interface {
	SwaggerDoc() map[string]string
}

// optionParameters derives query parameters from options types such as ListOptions. It caches
// them, because most routes of a tier share a few types. It must be used by one goroutine.
type optionParameters map[reflect.Type][]common.Parameter

// forType returns a query parameter for every field of options that a URL can carry: the fields
// with a JSON name whose type is not a struct or an interface, or a pointer to one. Fields
// named in without are omitted. options must be a pointer to a struct.
func (o optionParameters) forType(options runtime.Object, without ...string) []common.Parameter {
	typ := reflect.TypeOf(options).Elem()
	all, ok := o[typ]
	if !ok {
		all = parametersOf(typ, options)
		o[typ] = all
	}
	if len(without) == 0 {
		return all
	}
	return slices.DeleteFunc(slices.Clone(all), func(p common.Parameter) bool {
		return slices.Contains(without, p.Name())
	})
}

func parametersOf(typ reflect.Type, options runtime.Object) []common.Parameter {
	var texts map[string]string
	if d, ok := options.(documented); ok {
		texts = d.SwaggerDoc()
	}
	var parameters []common.Parameter
	for i := range typ.NumField() {
		field := typ.Field(i)
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		dataType, ok := queryType(field.Type)
		if name == "" || !ok {
			continue
		}
		parameters = append(parameters, queryParameter(name, texts[name], dataType))
	}
	return parameters
}

// queryType returns the JSON type of a Go type in a query. The type of a list is that of its
// elements, because the parameter may be repeated.
func queryType(typ reflect.Type) (string, bool) {
	for typ.Kind() == reflect.Pointer || typ.Kind() == reflect.Slice {
		typ = typ.Elem()
	}
	switch typ.Kind() {
	case reflect.Bool:
		return "boolean", true
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64,
		reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return "integer", true
	case reflect.Float32, reflect.Float64:
		return "number", true
	case reflect.String:
		return "string", true
	}
	return "", false
}
