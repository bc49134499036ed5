package render

import (
	"bytes"
	"fmt"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"

	"triune.dev/shared/storage/bytecache"
)

// itemStyle is how objects of a built-in kind are encoded in a JSON list. If the list is
// converted from the internal version, its items have no kind and apiVersion; otherwise
// they keep those of the decoded object. The style is detected by encoding a list of one
// object.
type itemStyle struct{ style atomic.Int32 }

const (
	withoutTypeMeta = iota + 1
	withTypeMeta
	otherItems
)

func (s *itemStyle) item(v *Version, e *bytecache.Entry, rendered []byte) (head string, item []byte, err error) {
	style := s.style.Load()
	if style == 0 {
		if style, err = detectItemStyle(v, e, rendered); err != nil {
			return "", nil, err
		}
		s.style.Store(style)
	}
	rest, ok := bytes.CutPrefix(rendered, v.typeMeta)
	switch {
	case !ok || style == otherItems:
		return "", nil, fmt.Errorf("objects of kind %s do not stand in lists as they do alone", v.config.Kind)
	case style == withTypeMeta:
		return "", bytes.TrimSuffix(rendered, newline), nil
	default:
		return "{", bytes.TrimSuffix(rest, newline), nil
	}
}

func detectItemStyle(v *Version, e *bytecache.Entry, rendered []byte) (int32, error) {
	obj, err := v.Decode(e, e.Revision)
	if err != nil {
		return 0, err
	}
	list := v.config.NewList()
	if err := meta.SetList(list, []runtime.Object{obj}); err != nil {
		return 0, fmt.Errorf("make a list of one %s: %w", v.config.Kind, err)
	}
	data, err := runtime.Encode(v.encoders[JSON], list)
	if err != nil {
		return 0, fmt.Errorf("encode a list of one %s: %w", v.config.Kind, err)
	}
	const items = `"items":[`
	rest, ok := bytes.CutPrefix(rendered, v.typeMeta)
	at := bytes.Index(data, []byte(items))
	if !ok || at < 0 {
		return otherItems, nil
	}
	item := bytes.TrimSuffix(data[at+len(items):], []byte("]}\n"))
	switch {
	case bytes.Equal(item, bytes.TrimSuffix(rendered, newline)):
		return withTypeMeta, nil
	case len(item) > 0 && item[0] == '{' && bytes.Equal(item[1:], bytes.TrimSuffix(rest, newline)):
		return withoutTypeMeta, nil
	}
	return otherItems, nil
}
