package openapi

import (
	"reflect"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/kube-openapi/pkg/common"
)

// documented is implemented by the versioned API types: a text for each field, by
// its JSON name.
type documented interface {
	SwaggerDoc() map[string]string
}

// optionParameters makes query parameters of options types such as ListOptions.
// Most routes of a tier share the few types there are, so their parameters are
// made once. It is for one goroutine.
type optionParameters map[reflect.Type][]common.Parameter

// of returns a query parameter for every field of options that a URL can carry:
// those with a JSON name whose type is not a struct or an interface, or a pointer
// to one. Fields named in without are left out. options must be a pointer to a
// struct.
func (o optionParameters) of(options runtime.Object, without ...string) []common.Parameter {
	of := reflect.TypeOf(options).Elem()
	all, known := o[of]
	if !known {
		all = parametersOf(of, options)
		o[of] = all
	}
	if len(without) == 0 {
		return all
	}
	return slices.DeleteFunc(slices.Clone(all), func(p common.Parameter) bool {
		return slices.Contains(without, p.Name())
	})
}

func parametersOf(of reflect.Type, options runtime.Object) []common.Parameter {
	var texts map[string]string
	if d, ok := options.(documented); ok {
		texts = d.SwaggerDoc()
	}
	var parameters []common.Parameter
	for i := range of.NumField() {
		field := of.Field(i)
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		dataType, ok := queryType(field.Type)
		if name == "" || !ok {
			continue
		}
		parameters = append(parameters, queryParameter(name, texts[name], dataType))
	}
	return parameters
}

// queryType returns the JSON type of what stands in a query for a Go type. A
// list is described by the type of its elements: the parameter may be repeated.
func queryType(of reflect.Type) (string, bool) {
	for of.Kind() == reflect.Pointer || of.Kind() == reflect.Slice {
		of = of.Elem()
	}
	switch of.Kind() {
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
