package reads

import (
	"reflect"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
)

// A row depends on the time at which it is printed: printers show ages, always formatted by
// k8s.io/apimachinery/pkg/util/duration.HumanDuration from a timestamp in the object. So a
// row is valid until the formatted age of one of these timestamps changes, whether or not
// the row includes it.

// ageUnit returns the precision in which an age is shown, or a finer one.
func ageUnit(age time.Duration) time.Duration {
	switch {
	case age < 10*time.Minute:
		return time.Second
	case age < 8*time.Hour:
		return time.Minute
	case age < 8*24*time.Hour:
		return time.Hour
	default:
		return 24 * time.Hour
	}
}

// nextAgeChange returns when the formatted age of a timestamp, or time until it, changes.
func nextAgeChange(timestamp, now time.Time) time.Time {
	age := now.Sub(timestamp)
	if age >= 0 {
		unit := ageUnit(age)
		return timestamp.Add((age/unit + 1) * unit)
	}
	// The time until a future timestamp changes right after a multiple of the unit.
	unit := ageUnit(-age)
	return timestamp.Add(-(-age / unit * unit))
}

// unchangedUntil returns when the formatted ages in an object change.
func unchangedUntil(obj runtime.Object, now time.Time) time.Time {
	until := now.Add(24 * time.Hour)
	yield := func(timestamp time.Time) {
		if timestamp.IsZero() {
			return
		}
		if next := nextAgeChange(timestamp, now); next.Before(until) {
			until = next
		}
	}
	if u, ok := obj.(runtime.Unstructured); ok {
		eachTimeString(u.UnstructuredContent(), yield)
	} else {
		eachTime(reflect.ValueOf(obj), yield)
	}
	return until
}

// eachTimeString calls yield for the timestamps in unstructured content.
func eachTimeString(value any, yield func(time.Time)) {
	switch v := value.(type) {
	case map[string]any:
		for _, member := range v {
			eachTimeString(member, yield)
		}
	case []any:
		for _, element := range v {
			eachTimeString(element, yield)
		}
	case string:
		if len(v) < len("2006-01-02T") || v[4] != '-' || v[10] != 'T' {
			return
		}
		if timestamp, err := time.Parse(time.RFC3339, v); err == nil {
			yield(timestamp)
		}
	}
}

var (
	timeType = reflect.TypeFor[time.Time]()
	// typesWithTime records whether values of a type may contain a timestamp.
	typesWithTime sync.Map // reflect.Type → bool
	// fieldsWithTime records the indexes of the fields of a struct that may.
	fieldsWithTime sync.Map // reflect.Type → []int
)

// timeFields returns the indexes of the fields in which eachTime looks.
func timeFields(t reflect.Type) []int {
	if known, ok := fieldsWithTime.Load(t); ok {
		return known.([]int)
	}
	var fields []int
	for i := range t.NumField() {
		if f := t.Field(i); f.IsExported() && mayContainTime(f.Type, nil) {
			fields = append(fields, i)
		}
	}
	fieldsWithTime.Store(t, fields)
	return fields
}

// eachTime calls yield for the timestamps in a Go value.
func eachTime(v reflect.Value, yield func(time.Time)) {
	if !mayContainTime(v.Type(), nil) {
		return
	}
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		if !v.IsNil() {
			eachTime(v.Elem(), yield)
		}
	case reflect.Slice, reflect.Array:
		for i := range v.Len() {
			eachTime(v.Index(i), yield)
		}
	case reflect.Map:
		for _, key := range v.MapKeys() {
			eachTime(v.MapIndex(key), yield)
		}
	case reflect.Struct:
		if v.Type() == timeType {
			yield(v.Interface().(time.Time))
			return
		}
		for _, i := range timeFields(v.Type()) {
			eachTime(v.Field(i), yield)
		}
	}
}

func mayContainTime(t reflect.Type, above []reflect.Type) bool {
	if known, ok := typesWithTime.Load(t); ok {
		return known.(bool)
	}
	for _, a := range above {
		if a == t {
			return false // the outer call looks at the other fields
		}
	}
	above = append(above, t)
	may := false
	switch t.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Array, reflect.Map:
		may = mayContainTime(t.Elem(), above)
	case reflect.Interface:
		may = true
	case reflect.Struct:
		may = t == timeType
		for i := 0; i < t.NumField() && !may; i++ {
			may = t.Field(i).IsExported() && mayContainTime(t.Field(i).Type, above)
		}
	}
	// A negative result below a recursive type may be incomplete.
	if may || len(above) == 1 {
		typesWithTime.Store(t, may)
	}
	return may
}
