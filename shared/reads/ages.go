package reads

import (
	"reflect"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
)

// A row depends on the time at which it is made: printers show how long ago things
// have happened, always by k8s.io/apimachinery/pkg/util/duration.HumanDuration of a
// timestamp in the object. So a row stays what it is until one of the timestamps in
// the object comes to an age that would be shown in another way, whether or not it is
// shown at all.

// ageUnit is the precision in which an age is shown, or a finer one.
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

// nextAge returns when the age of a timestamp, or the time until it, will be shown
// in another way than it is now.
func nextAge(timestamp, now time.Time) time.Time {
	age := now.Sub(timestamp)
	if age >= 0 {
		unit := ageUnit(age)
		return timestamp.Add((age/unit + 1) * unit)
	}
	// Something to come: what is shown changes right after a multiple of the unit.
	unit := ageUnit(-age)
	return timestamp.Add(-(-age / unit * unit))
}

// unchangedUntil returns when the ages in an object will be shown in another way.
func unchangedUntil(obj runtime.Object, now time.Time) time.Time {
	until := now.Add(24 * time.Hour)
	note := func(timestamp time.Time) {
		if timestamp.IsZero() {
			return
		}
		if next := nextAge(timestamp, now); next.Before(until) {
			until = next
		}
	}
	if u, ok := obj.(runtime.Unstructured); ok {
		eachTimeString(u.UnstructuredContent(), note)
	} else {
		eachTime(reflect.ValueOf(obj), note)
	}
	return until
}

// eachTimeString finds the timestamps in unstructured content.
func eachTimeString(value any, note func(time.Time)) {
	switch v := value.(type) {
	case map[string]any:
		for _, member := range v {
			eachTimeString(member, note)
		}
	case []any:
		for _, element := range v {
			eachTimeString(element, note)
		}
	case string:
		if len(v) < len("2006-01-02T") || v[4] != '-' || v[10] != 'T' {
			return
		}
		if timestamp, err := time.Parse(time.RFC3339, v); err == nil {
			note(timestamp)
		}
	}
}

var (
	timeType = reflect.TypeFor[time.Time]()
	// timed tells the types of which values may hold a timestamp.
	timed sync.Map // reflect.Type → bool
	// fieldsOfTimed has the fields of structures that may.
	fieldsOfTimed sync.Map // reflect.Type → []int
)

// timedFields are the indexes of the fields of a structure in which eachTime looks.
func timedFields(t reflect.Type) []int {
	if known, ok := fieldsOfTimed.Load(t); ok {
		return known.([]int)
	}
	var fields []int
	for i := range t.NumField() {
		if f := t.Field(i); f.IsExported() && mayHoldTime(f.Type, nil) {
			fields = append(fields, i)
		}
	}
	fieldsOfTimed.Store(t, fields)
	return fields
}

// eachTime finds the timestamps in a Go value.
func eachTime(v reflect.Value, note func(time.Time)) {
	if !mayHoldTime(v.Type(), nil) {
		return
	}
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		if !v.IsNil() {
			eachTime(v.Elem(), note)
		}
	case reflect.Slice, reflect.Array:
		for i := range v.Len() {
			eachTime(v.Index(i), note)
		}
	case reflect.Map:
		for _, key := range v.MapKeys() {
			eachTime(v.MapIndex(key), note)
		}
	case reflect.Struct:
		if v.Type() == timeType {
			note(v.Interface().(time.Time))
			return
		}
		for _, i := range timedFields(v.Type()) {
			eachTime(v.Field(i), note)
		}
	}
}

func mayHoldTime(t reflect.Type, above []reflect.Type) bool {
	if known, ok := timed.Load(t); ok {
		return known.(bool)
	}
	for _, a := range above {
		if a == t {
			return false // a recursion holds no more than what it recurs in
		}
	}
	above = append(above, t)
	may := false
	switch t.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Array, reflect.Map:
		may = mayHoldTime(t.Elem(), above)
	case reflect.Interface:
		may = true
	case reflect.Struct:
		may = t == timeType
		for i := 0; i < t.NumField() && !may; i++ {
			may = t.Field(i).IsExported() && mayHoldTime(t.Field(i).Type, above)
		}
	}
	// What was found below a recursion may be incomplete if it is no.
	if may || len(above) == 1 {
		timed.Store(t, may)
	}
	return may
}
