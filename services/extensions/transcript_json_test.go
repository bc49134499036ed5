package extensions_test

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
)

// ordered is a JSON object with its members in their original order.
type ordered []member

type member struct {
	name  string
	value any
}

func (o ordered) get(name string) any {
	for _, m := range o {
		if m.name == name {
			return m.value
		}
	}
	return nil
}

func (o ordered) MarshalJSON() ([]byte, error) {
	var out bytes.Buffer
	out.WriteByte('{')
	for i, m := range o {
		if i > 0 {
			out.WriteByte(',')
		}
		fmt.Fprintf(&out, "%q:", m.name)
		value, err := json.Marshal(m.value)
		if err != nil {
			return nil, err
		}
		out.Write(value)
	}
	out.WriteByte('}')
	return out.Bytes(), nil
}

// decodeOrdered reads one JSON value. Numbers keep their spelling.
func decodeOrdered(d *json.Decoder) (any, error) {
	token, err := d.Token()
	if err != nil {
		return nil, err
	}
	switch token {
	case json.Delim('['):
		list := []any{}
		for d.More() {
			value, err := decodeOrdered(d)
			if err != nil {
				return nil, err
			}
			list = append(list, value)
		}
		_, err = d.Token()
		return list, err
	case json.Delim('{'):
		object := ordered{}
		for d.More() {
			name, err := d.Token()
			if err != nil {
				return nil, err
			}
			value, err := decodeOrdered(d)
			if err != nil {
				return nil, err
			}
			if name == "managedFields" {
				value = sortManagers(value)
			}
			object = append(object, member{name.(string), value})
		}
		_, err = d.Token()
		return object, err
	}
	return token, nil
}

// sortManagers sorts metadata.managedFields, whose order depends on the time. It keeps the
// order of all other lists.
func sortManagers(value any) any {
	entries, ok := value.([]any)
	if !ok {
		return value
	}
	key := func(entry any) string {
		o, _ := entry.(ordered)
		return fmt.Sprint(o.get("operation"), o.get("manager"), o.get("subresource"), o.get("apiVersion"))
	}
	slices.SortStableFunc(entries, func(a, b any) int { return cmp.Compare(key(a), key(b)) })
	return entries
}
