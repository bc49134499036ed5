package compactcrd

import (
	"bytes"
	"compress/flate"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
)

// mark begins what is packed: no JSON begins so, and what stands in its place in a
// definition that a client has written is JSON.
const mark = 0

// longAnnotation is from how many bytes on an annotation is packed: the one with the
// last applied configuration is as long as the schemas together.
const longAnnotation = 1 << 10

// Pack makes an outline of a *CustomResourceDefinition, in place; anything else, and
// what is an outline already, is returned as it is. It is a cache.TransformFunc.
func Pack(obj any) (any, error) {
	crd, ok := obj.(*apiextensionsv1.CustomResourceDefinition)
	if !ok || len(crd.Spec.Versions) == 0 || packed(crd) != nil {
		return obj, nil
	}
	var schemas apiextensionsv1.CustomResourceDefinitionSpec
	for _, v := range crd.Spec.Versions {
		schemas.Versions = append(schemas.Versions, apiextensionsv1.CustomResourceDefinitionVersion{Schema: v.Schema})
	}
	data, err := schemas.Marshal()
	if err != nil {
		return nil, fmt.Errorf("pack the schemas of %s: %w", crd.Name, err)
	}
	if data, err = compress(data); err != nil {
		return nil, fmt.Errorf("pack the schemas of %s: %w", crd.Name, err)
	}
	for key, text := range crd.Annotations {
		if len(text) < longAnnotation && !strings.HasPrefix(text, string(rune(mark))) {
			continue
		}
		small, err := compress([]byte(text))
		if err != nil {
			return nil, fmt.Errorf("pack annotation %s of %s: %w", key, crd.Name, err)
		}
		crd.Annotations[key] = string(small)
	}
	crd.ManagedFields = nil
	for i := range crd.Spec.Versions {
		crd.Spec.Versions[i].Schema = nil
	}
	crd.Spec.Versions[0].Schema = &apiextensionsv1.CustomResourceValidation{
		OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Example: &apiextensionsv1.JSON{Raw: data}},
	}
	return crd, nil
}

// packed returns the packed schemas of an outline, nil for any other definition.
func packed(crd *apiextensionsv1.CustomResourceDefinition) []byte {
	if len(crd.Spec.Versions) == 0 {
		return nil
	}
	v := &crd.Spec.Versions[0]
	if v.Schema == nil || v.Schema.OpenAPIV3Schema == nil || v.Schema.OpenAPIV3Schema.Example == nil {
		return nil
	}
	if raw := v.Schema.OpenAPIV3Schema.Example.Raw; len(raw) > 0 && raw[0] == mark {
		return raw
	}
	return nil
}

// Whole returns the definition with its schemas and annotations, but without managed
// fields. It shares with crd what both have. A definition that is no outline is
// returned as it is.
func Whole(crd *apiextensionsv1.CustomResourceDefinition) (*apiextensionsv1.CustomResourceDefinition, error) {
	small := packed(crd)
	if small == nil {
		return crd, nil
	}
	data, err := decompress(small)
	if err != nil {
		return nil, fmt.Errorf("unpack the schemas of %s: %w", crd.Name, err)
	}
	var schemas apiextensionsv1.CustomResourceDefinitionSpec
	if err := schemas.Unmarshal(data); err != nil {
		return nil, fmt.Errorf("unpack the schemas of %s: %w", crd.Name, err)
	}
	if len(schemas.Versions) != len(crd.Spec.Versions) {
		return nil, fmt.Errorf("unpack the schemas of %s: %d for %d versions", crd.Name, len(schemas.Versions), len(crd.Spec.Versions))
	}
	out, err := Bare(crd)
	if err != nil {
		return nil, err
	}
	for i := range out.Spec.Versions {
		out.Spec.Versions[i].Schema = schemas.Versions[i].Schema
	}
	return out, nil
}

// Bare returns what an outline was made of, without its schemas and managed fields.
func Bare(crd *apiextensionsv1.CustomResourceDefinition) (*apiextensionsv1.CustomResourceDefinition, error) {
	if packed(crd) == nil {
		return crd, nil
	}
	out := *crd
	out.Annotations = maps.Clone(crd.Annotations)
	for key, text := range crd.Annotations {
		if !strings.HasPrefix(text, string(rune(mark))) {
			continue
		}
		long, err := decompress([]byte(text))
		if err != nil {
			return nil, fmt.Errorf("unpack annotation %s of %s: %w", key, crd.Name, err)
		}
		out.Annotations[key] = string(long)
	}
	out.Spec.Versions = slices.Clone(crd.Spec.Versions)
	out.Spec.Versions[0].Schema = nil
	return &out, nil
}

// compressors are *flate.Writer: one is 600 kB.
var compressors = sync.Pool{New: func() any {
	w, err := flate.NewWriter(io.Discard, flate.BestSpeed)
	if err != nil {
		panic(err) // the level is a constant
	}
	return w
}}

// compress puts the mark in front.
func compress(data []byte) ([]byte, error) {
	out := bytes.NewBuffer(make([]byte, 0, 64+len(data)/4))
	out.WriteByte(mark)
	w := compressors.Get().(*flate.Writer)
	defer compressors.Put(w)
	w.Reset(out)
	if _, err := w.Write(data); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return bytes.Clone(out.Bytes()), nil
}

func decompress(data []byte) ([]byte, error) {
	if len(data) == 0 || data[0] != mark {
		return nil, errors.New("it is not packed")
	}
	return io.ReadAll(flate.NewReader(bytes.NewReader(data[1:])))
}
