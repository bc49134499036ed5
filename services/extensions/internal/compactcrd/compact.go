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

// compressedMark is the first byte of compressed data. JSON cannot begin with it, so a
// schema that a client has written is never taken for a compressed one.
const compressedMark = 0

// longAnnotation is the length in bytes from which annotations are compressed. The last
// applied configuration of kubectl is as long as all schemas.
const longAnnotation = 1 << 10

// Compact makes a *CustomResourceDefinition compact, in place. It returns other objects and
// compact CRDs unchanged. It is a cache.TransformFunc.
func Compact(obj any) (any, error) {
	crd, ok := obj.(*apiextensionsv1.CustomResourceDefinition)
	if !ok || len(crd.Spec.Versions) == 0 || compressedSchemas(crd) != nil {
		return obj, nil
	}
	var schemas apiextensionsv1.CustomResourceDefinitionSpec
	for _, v := range crd.Spec.Versions {
		schemas.Versions = append(schemas.Versions, apiextensionsv1.CustomResourceDefinitionVersion{Schema: v.Schema})
	}
	data, err := schemas.Marshal()
	if err != nil {
		return nil, fmt.Errorf("encode the schemas of %s: %w", crd.Name, err)
	}
	if data, err = compress(data); err != nil {
		return nil, fmt.Errorf("compress the schemas of %s: %w", crd.Name, err)
	}
	for key, text := range crd.Annotations {
		if len(text) < longAnnotation && !strings.HasPrefix(text, string(rune(compressedMark))) {
			continue
		}
		compressed, err := compress([]byte(text))
		if err != nil {
			return nil, fmt.Errorf("compress annotation %s of %s: %w", key, crd.Name, err)
		}
		crd.Annotations[key] = string(compressed)
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

// compressedSchemas returns the compressed schemas of a compact CRD, nil for others.
func compressedSchemas(crd *apiextensionsv1.CustomResourceDefinition) []byte {
	if len(crd.Spec.Versions) == 0 {
		return nil
	}
	v := &crd.Spec.Versions[0]
	if v.Schema == nil || v.Schema.OpenAPIV3Schema == nil || v.Schema.OpenAPIV3Schema.Example == nil {
		return nil
	}
	if raw := v.Schema.OpenAPIV3Schema.Example.Raw; len(raw) > 0 && raw[0] == compressedMark {
		return raw
	}
	return nil
}

// Expand returns a compact CRD with its schemas and annotations; managed fields are lost.
// The result shares all other fields with crd. A CRD that is not compact is returned
// itself.
func Expand(crd *apiextensionsv1.CustomResourceDefinition) (*apiextensionsv1.CustomResourceDefinition, error) {
	compressed := compressedSchemas(crd)
	if compressed == nil {
		return crd, nil
	}
	data, err := decompress(compressed)
	if err != nil {
		return nil, fmt.Errorf("decompress the schemas of %s: %w", crd.Name, err)
	}
	var schemas apiextensionsv1.CustomResourceDefinitionSpec
	if err := schemas.Unmarshal(data); err != nil {
		return nil, fmt.Errorf("decode the schemas of %s: %w", crd.Name, err)
	}
	if len(schemas.Versions) != len(crd.Spec.Versions) {
		return nil, fmt.Errorf("decode the schemas of %s: %d for %d versions", crd.Name, len(schemas.Versions), len(crd.Spec.Versions))
	}
	out, err := WithoutSchemas(crd)
	if err != nil {
		return nil, err
	}
	for i := range out.Spec.Versions {
		out.Spec.Versions[i].Schema = schemas.Versions[i].Schema
	}
	return out, nil
}

// WithoutSchemas returns a compact CRD with its annotations but no schemas. A CRD that is
// not compact is returned itself.
func WithoutSchemas(crd *apiextensionsv1.CustomResourceDefinition) (*apiextensionsv1.CustomResourceDefinition, error) {
	if compressedSchemas(crd) == nil {
		return crd, nil
	}
	out := *crd
	out.Annotations = maps.Clone(crd.Annotations)
	for key, text := range crd.Annotations {
		if !strings.HasPrefix(text, string(rune(compressedMark))) {
			continue
		}
		expanded, err := decompress([]byte(text))
		if err != nil {
			return nil, fmt.Errorf("decompress annotation %s of %s: %w", key, crd.Name, err)
		}
		out.Annotations[key] = string(expanded)
	}
	out.Spec.Versions = slices.Clone(crd.Spec.Versions)
	out.Spec.Versions[0].Schema = nil
	return &out, nil
}

// compressors pools *flate.Writer values, which take 600 kB each.
var compressors = sync.Pool{New: func() any {
	w, err := flate.NewWriter(io.Discard, flate.BestSpeed)
	if err != nil {
		panic(err) // the level is a constant
	}
	return w
}}

// compress returns compressedMark and the compressed data.
func compress(data []byte) ([]byte, error) {
	out := bytes.NewBuffer(make([]byte, 0, 64+len(data)/4))
	out.WriteByte(compressedMark)
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
	if len(data) == 0 || data[0] != compressedMark {
		return nil, errors.New("data is not compressed")
	}
	return io.ReadAll(flate.NewReader(bytes.NewReader(data[1:])))
}
