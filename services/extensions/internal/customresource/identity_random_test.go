package customresource

import (
	"bytes"
	"encoding/json"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	utiljson "k8s.io/apimachinery/pkg/util/json"
)

// keys are few, so that random objects fit random schemas.
var keys = []string{"a", "b", "c", "Z", "é", "kind", "metadata", "apiVersion", "items", ""}

func raw(value any) *apiextensionsv1.JSON {
	data, err := json.Marshal(value)
	if err != nil {
		panic(err)
	}
	return &apiextensionsv1.JSON{Raw: data}
}

func yes() *bool { v := true; return &v }

// anySchema returns a random schema of the given depth.
func anySchema(r *rand.Rand, depth int) apiextensionsv1.JSONSchemaProps {
	s := apiextensionsv1.JSONSchemaProps{Nullable: r.IntN(8) == 0}
	kind := r.IntN(10)
	if depth == 0 {
		kind %= 4
	}
	switch kind {
	case 0:
		s.Type = "string"
	case 1:
		s.Type = "integer"
	case 2:
		s.Type = "number"
	case 3:
		s.XIntOrString = true
	case 4:
		s.Type = "array"
		items := anySchema(r, depth-1)
		if r.IntN(4) > 0 {
			s.Items = &apiextensionsv1.JSONSchemaPropsOrArray{Schema: &items}
		}
		if r.IntN(4) == 0 {
			s.XPreserveUnknownFields = yes()
		}
	case 5:
		s.Type = "object"
		s.AdditionalProperties = &apiextensionsv1.JSONSchemaPropsOrBool{Allows: true}
		if below := anySchema(r, depth-1); r.IntN(4) > 0 {
			s.AdditionalProperties.Schema = &below
		}
		if r.IntN(4) == 0 {
			s.XPreserveUnknownFields = yes()
		}
	default:
		s.Type = "object"
		s.Properties = map[string]apiextensionsv1.JSONSchemaProps{}
		for range r.IntN(5) {
			s.Properties[keys[r.IntN(len(keys))]] = anySchema(r, depth-1)
		}
		if r.IntN(3) == 0 {
			s.XPreserveUnknownFields = yes()
		}
		if r.IntN(8) == 0 {
			s.XPreserveUnknownFields, s.XEmbeddedResource = yes(), true
			if metadata, ok := s.Properties["metadata"]; ok {
				metadata.Default = nil // a default that is no metadata
				s.Properties["metadata"] = metadata
			}
		}
	}
	if r.IntN(4) == 0 {
		s.Default = raw(fitting(r, &s, 2))
	}
	return s
}

// strange are texts, most of which need escapes.
var strange = []string{"", "x", "a \"quoted\" \\ text", "<a href='x'>&</a>", "line\nline\ttab", "\b\f\r\x01\x1f\x7f", "é 世界 😀", "\u2028\u2029", `{"a":"b"}`, "2026-01-02T03:04:05Z"}

// fitting returns a random value for a schema, with few unknown fields.
func fitting(r *rand.Rand, s *apiextensionsv1.JSONSchemaProps, depth int) any {
	numbers := []any{int64(0), int64(-1), int64(9223372036854775807), int64(-9223372036854775808), 1.5, -0.25, 0.000001, 12345.678, int64(1700000000000000000)}
	scalars := append([]any{true, false, strange[r.IntN(len(strange))]}, numbers...)
	switch {
	case s == nil && depth > 0 && r.IntN(3) == 0:
		return map[string]any{keys[r.IntN(len(keys))]: fitting(r, nil, depth-1), strange[r.IntN(len(strange))]: nil}
	case s == nil && depth > 0 && r.IntN(3) == 0:
		return []any{fitting(r, nil, depth-1), fitting(r, nil, depth-1)}
	case s == nil || r.IntN(20) == 0:
		return scalars[r.IntN(len(scalars))]
	case s.Nullable && r.IntN(3) == 0:
		return nil
	}
	switch s.Type {
	case "array":
		out := []any{}
		for range r.IntN(3) {
			var items *apiextensionsv1.JSONSchemaProps
			if s.Items != nil {
				items = s.Items.Schema
			}
			out = append(out, fitting(r, items, depth-1))
		}
		return out
	case "object":
		out := map[string]any{}
		for _, key := range slices.Sorted(maps.Keys(s.Properties)) {
			if p := s.Properties[key]; r.IntN(3) > 0 {
				out[key] = fitting(r, &p, depth-1)
			}
		}
		if s.AdditionalProperties != nil || s.XPreserveUnknownFields != nil || r.IntN(20) == 0 {
			var below *apiextensionsv1.JSONSchemaProps
			if s.AdditionalProperties != nil {
				below = s.AdditionalProperties.Schema
			}
			for range r.IntN(3) {
				key := append(keys, strange...)[r.IntN(len(keys)+len(strange))]
				if _, is := s.Properties[key]; !is {
					out[key] = fitting(r, below, depth-1)
				}
			}
		}
		if s.XEmbeddedResource {
			out["apiVersion"], out["kind"], out["metadata"] = "v1", "Pod", map[string]any{"name": "x", "labels": map[string]any{"a": "b"}, "creationTimestamp": "2026-01-02T03:04:05Z", "resourceVersion": "1"}
			delete(out, []string{"apiVersion", "kind", "metadata"}[r.IntN(3)])
		}
		return out
	}
	return scalars[r.IntN(len(scalars))]
}

// anyObject returns a random object with well-formed metadata.
func anyObject(t testing.TB, r *rand.Rand, s *apiextensionsv1.JSONSchemaProps) map[string]any {
	out, ok := fitting(r, s, 4).(map[string]any)
	if !ok {
		out = map[string]any{}
	}
	metadata := decoded(t, usual)
	for _, key := range []string{"namespace", "deletionTimestamp", "deletionGracePeriodSeconds", "labels", "annotations", "finalizers", "ownerReferences", "managedFields", "uid"} {
		if r.IntN(4) == 0 {
			delete(metadata, key)
		}
	}
	if annotations, ok := metadata["annotations"].(map[string]any); ok {
		annotations["note"] = strange[r.IntN(len(strange))]
	}
	if r.IntN(3) == 0 {
		metadata["managedFields"] = []any{map[string]any{"manager": "m", "fieldsV1": map[string]any{`k:{"type":"Ready"}`: map[string]any{}, `k:{"type":"A"}`: map[string]any{".": map[string]any{}}, `k:x`: map[string]any{}}}}
	}
	out["apiVersion"], out["kind"], out["metadata"] = "example.com/v1", "Widget", metadata
	return out
}

// rootSchema returns a random schema of a kind.
func rootSchema(r *rand.Rand) apiextensionsv1.JSONSchemaProps {
	s := apiextensionsv1.JSONSchemaProps{Type: "object", Properties: map[string]apiextensionsv1.JSONSchemaProps{}}
	for _, key := range []string{"spec", "status", "a", "Z", "x", "items"} {
		if r.IntN(3) > 0 {
			s.Properties[key] = anySchema(r, 3)
		}
	}
	if r.IntN(3) == 0 {
		s.Properties["metadata"] = apiextensionsv1.JSONSchemaProps{Type: "object", Properties: map[string]apiextensionsv1.JSONSchemaProps{"name": {Type: "string", MaxLength: new(int64)}}}
		s.Properties["kind"] = apiextensionsv1.JSONSchemaProps{Type: "string"}
	}
	if r.IntN(4) == 0 {
		s.XPreserveUnknownFields = yes()
	}
	switch r.IntN(20) { // what is refused as a whole
	case 0:
		s.Properties["metadata"] = apiextensionsv1.JSONSchemaProps{Type: "object", Properties: map[string]apiextensionsv1.JSONSchemaProps{"generateName": {Type: "string", Default: raw("x")}}}
	case 1:
		s.XEmbeddedResource, s.XPreserveUnknownFields = true, yes()
	case 2:
		s.AdditionalProperties = &apiextensionsv1.JSONSchemaPropsOrBool{Allows: true, Schema: &apiextensionsv1.JSONSchemaProps{Type: "object"}}
	}
	return s
}

// swaps are replacements of texts by equivalent ones, nearly all of which are not canonical.
var swaps = [][2]string{
	{`:`, `: `}, {`,`, ` ,`}, {`,`, `,,`}, {`}`, `,}`}, {"\n", ""}, {"\n", "\n\n"}, {"\n", "x"}, {"\n", " \n"},
	{`1`, `1.0`}, {`1`, `1e3`}, {`0`, `-0`}, {`1.5`, `1.50`}, {`1`, `01`}, {`1`, `+1`}, {`1`, `1.`}, {`1`, `-`}, {`9223372036854775807`, `9223372036854775808`}, {`1.5`, `1e400`}, {`1.5`, `100000000000000000000`}, {`1.5`, `0.1234567890123456789`}, {`0.000001`, `0.0000001`}, {`0.000001`, `1e-7`},
	{`\u003c`, `<`}, {`\u003c`, `\u003C`}, {`\n`, `\u000a`}, {`\u0001`, `\u0009`}, {`x`, `\u0078`}, {`x`, `\/`}, {`x`, `/`}, {`\"`, `\u0022`}, {`x`, "\xff"}, {`x`, "\u2028"}, {`\u2028`, "\u2028"}, {`x`, `\ud83d\ude00`}, {`x`, `\ud83d`}, {`x`, `\ufffd`}, {`x`, "\ufffd"}, {`x`, "\x01"}, {`x`, `\`}, {`x`, `"`},
	{`true`, `null`}, {`true`, `truE`}, {`false`, `0`}, {`"x"`, `null`}, {`{}`, `null`}, {`{}`, `[]`}, {`[]`, `{}`}, {`"a"`, `"b"`}, {`"b"`, `"a"`}, {`"c"`, `"unknown"`},
	{`example.com/v1`, `example.com/v1beta1`}, {`example.com/v1`, `example.org/v1`}, {`Widget`, `Gadget`}, {`"kind":"Widget",`, ``}, {`"generation":3`, `"generation":0`}, {`"generation":3,`, ``}, {`"uid"`, `"resourceVersion":"1","uid"`}, {`"uid"`, `"resourceVersion":"","uid"`}, {`"uid"`, `"selfLink":"/x","uid"`}, {`"metadata"`, `"metadata":{},"metadata"`},
	{`{`, `{"a":1,"a":1,`}, {`{`, `{"0":1,`}, {`{`, `{"":null,`}, {`[`, `[null,`}, {`[`, `[[],`},
}

// damage makes a random change in a text.
func damage(r *rand.Rand, text []byte) []byte {
	switch r.IntN(6) {
	case 0: // something is cut off, or missing, or there twice
		from := r.IntN(len(text))
		to := min(from+1+r.IntN(12), len(text))
		return slices.Concat([][]byte{text[:from], text[:to], text[:from]}[r.IntN(3)], [][]byte{text[to:], text[from:], nil}[r.IntN(3)])
	case 1:
		out := bytes.Clone(text)
		out[r.IntN(len(out))] = byte(r.IntN(256))
		return out
	case 2: // members in another order
		members := strings.Split(string(text), ",")
		i, j := r.IntN(len(members)), r.IntN(len(members))
		members[i], members[j] = members[j], members[i]
		return []byte(strings.Join(members, ","))
	case 3: // something odd within, written as it should be
		var content map[string]any
		if utiljson.Unmarshal(text, &content) == nil {
			changed, err := json.Marshal(change(r, content))
			if err == nil {
				return append(changed, '\n')
			}
		}
	}
	swap := swaps[r.IntN(len(swaps))]
	n := bytes.Count(text, []byte(swap[0]))
	if n == 0 {
		return damage(r, text)
	}
	parts := bytes.SplitN(text, []byte(swap[0]), 2+r.IntN(n))
	return append(bytes.Join(parts[:len(parts)-1], []byte(swap[0])), append([]byte(swap[1]), parts[len(parts)-1]...)...)
}
