package render

import (
	"bytes"
	"errors"
	"sync"

	"triune.dev/shared/storage/bytecache"
)

// Labels reads labels from stored bytes without decoding them. The zero value is ready for
// use. Labels is safe for concurrent use, and interns the strings it returns.
type Labels struct{ interned interner }

// Of returns the labels of a stored object; ok is false if the bytes are ambiguous and the
// object must be decoded.
func (l *Labels) Of(data []byte) (labels map[string]string, ok bool) {
	ok = eachLabel(data, func(key, value []byte) {
		if labels == nil {
			labels = map[string]string{}
		}
		labels[l.interned.intern(key)] = l.interned.intern(value)
	})
	return labels, ok
}

// eachLabel calls yield for each label of a stored object; the last value of a repeated
// label counts. It returns false if the object must be decoded.
func eachLabel(data []byte, yield func(key, value []byte)) (ok bool) {
	labels := 0
	count := func(key, value []byte) {
		labels++
		yield(key, value)
	}
	if bytes.HasPrefix(data, protobufMagic) {
		ok = eachProtobufLabel(data, count)
	} else {
		ok = eachJSONLabel(data, count)
	}
	return ok && !labeledByDefault(builtInKind(data), labels)
}

// labeledByTemplate are the built-in kinds that, in some version at least, inherit the
// labels of their template if they have none. No other metadata depends on the rest of an
// object.
var labeledByTemplate = map[string]bool{
	"DaemonSet": true, "Deployment": true, "Job": true, "ReplicaSet": true, "ReplicationController": true, "StatefulSet": true,
}

// labeledByDefault reports whether decoding may add labels to a stored object of a built-in
// kind: to one that was written before the kind had such defaults, or by another program. A
// Namespace gets its name as a label.
func labeledByDefault(kind []byte, labels int) bool {
	return labels == 0 && labeledByTemplate[string(kind)] || string(kind) == "Namespace"
}

// OfEntry is Of for the bytes of an entry. It does not retain the bytes.
func (l *Labels) OfEntry(e *bytecache.Entry) (labels map[string]string, ok bool) {
	_, _ = withData(nil, e, func(_, stored []byte) ([]byte, error) {
		labels, ok = l.Of(stored)
		return nil, nil
	})
	return labels, ok
}

// Filter returns the filter of the labels of a stored object; ok is false for JSON, which
// would have to be read completely, and if the object must be decoded. It implements
// bytecache.Options.LabelFilter.
func (l *Labels) Filter(data []byte) (s bytecache.LabelFilter, ok bool) {
	if !bytes.HasPrefix(data, protobufMagic) {
		return 0, false
	}
	ok = eachLabel(data, func(key, value []byte) { s.Add(key, value) })
	return s, ok
}

// ValueOfEntry returns the value of one label, which is cheaper than OfEntry. It implements
// bytecache.Options.Label.
func (l *Labels) ValueOfEntry(e *bytecache.Entry, name string) (value string, has, known bool) {
	if e.Err != nil {
		return "", false, false
	}
	_, _ = withData(nil, e, func(_, stored []byte) ([]byte, error) {
		var last []byte
		known = eachLabel(stored, func(key, value []byte) {
			if string(key) == name {
				last, has = value, true
			}
		})
		if has {
			value = l.interned.intern(last)
		}
		return nil, nil
	})
	return value, has, known
}

// Labels returns the labels of an entry, from its stored bytes if possible. It implements
// bytecache.Options.Labels.
func (v *Version) Labels(e *bytecache.Entry) (bytecache.Attributes, error) {
	if e.Err != nil {
		return nil, e.Err
	}
	if labels, ok := v.labels.OfEntry(e); ok {
		return labels, nil
	}
	labels, _, err := v.attributes(e)
	return labels, err
}

// Fields returns the selectable fields of an entry. It implements bytecache.Options.Fields.
func (v *Version) Fields(e *bytecache.Entry) (bytecache.Attributes, error) {
	_, fields, err := v.attributes(e)
	return fields, err
}

var errNoAttributes = errors.New("encoded version: selectable fields are not known")

func (v *Version) attributes(e *bytecache.Entry) (labels, fields map[string]string, err error) {
	if v.config.Attributes == nil {
		return nil, nil, errNoAttributes
	}
	obj, err := v.Decode(e, e.Revision)
	if err != nil {
		return nil, nil, err
	}
	l, f, err := v.config.Attributes(obj)
	if err != nil {
		return nil, nil, err
	}
	return v.own(l), v.own(f), nil
}

// own copies attributes, because their strings may share memory with the decoded object.
func (v *Version) own(m map[string]string) map[string]string {
	out := make(map[string]string, len(m))
	for key, value := range m {
		out[v.labels.interned.intern([]byte(key))] = v.labels.interned.intern([]byte(value))
	}
	return out
}

// interner keeps one copy of each frequent string. It discards all copies when there are
// too many, because most strings are unique then.
type interner struct {
	mu     sync.Mutex
	copies map[string]string // guarded by mu
}

const (
	maxInterned       = 4096
	maxInternedString = 64
)

func (i *interner) intern(s []byte) string {
	if len(s) > maxInternedString {
		return string(s)
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if known, ok := i.copies[string(s)]; ok {
		return known
	}
	if i.copies == nil || len(i.copies) >= maxInterned {
		i.copies = map[string]string{}
	}
	own := string(s)
	i.copies[own] = own
	return own
}
