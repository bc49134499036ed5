package encoded

import (
	"bytes"
	"errors"
	"sync"

	"triune.dev/shared/bytecache"
)

// Labels reads labels from stored bytes without decoding them. The zero value is
// ready for use; it is safe for concurrent use. Equal strings are kept once.
type Labels struct{ interned interned }

// Of returns the labels of a stored object; ok is false where the bytes do not say
// them plainly, and the object has to be decoded.
func (l *Labels) Of(data []byte) (labels map[string]string, ok bool) {
	ok = eachLabel(data, func(key, value []byte) {
		if labels == nil {
			labels = map[string]string{}
		}
		labels[l.interned.of(key)] = l.interned.of(value)
	})
	return labels, ok
}

// eachLabel calls yield for the labels of a stored object; the last of several values of
// one counts. It returns false where the bytes do not say them plainly.
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
	return ok && !labelledByDefault(builtInKind(data), labels)
}

// labelledByTemplate are the built-in kinds that take the labels of their template if they
// have none, in some version at least. No other metadata depends on what else is in an
// object: conversions and defaults do to it what they do by looking at it.
var labelledByTemplate = map[string]bool{
	"DaemonSet": true, "Deployment": true, "Job": true, "ReplicaSet": true, "ReplicationController": true, "StatefulSet": true,
}

// labelledByDefault tells whether an object of a built-in kind that is stored with so many
// labels may have others once it is decoded: it was written to etcd before there were such
// defaults, or by somebody else. A Namespace has its name for a label.
func labelledByDefault(kind []byte, labels int) bool {
	return labels == 0 && labelledByTemplate[string(kind)] || string(kind) == "Namespace"
}

// OfEntry is Of for the bytes of an entry, which are not kept.
func (l *Labels) OfEntry(e *bytecache.Entry) (labels map[string]string, ok bool) {
	_, _ = splice(nil, e, func(_, stored []byte) ([]byte, error) {
		labels, ok = l.Of(stored)
		return nil, nil
	})
	return labels, ok
}

// Filter is that of the labels of a stored object; ok is false where the bytes do not say
// them plainly, or are JSON, of which all has to be read. It is meant for bytecache.Options.
func (l *Labels) Filter(data []byte) (s bytecache.LabelFilter, ok bool) {
	if !bytes.HasPrefix(data, protobufMagic) {
		return 0, false
	}
	ok = eachLabel(data, func(key, value []byte) { s.Add(key, value) })
	return s, ok
}

// OneOfEntry is OfEntry for the value of one label, which takes less. It is meant for
// bytecache.Options.
func (l *Labels) OneOfEntry(e *bytecache.Entry, name string) (value string, has, known bool) {
	if e.Err != nil {
		return "", false, false
	}
	_, _ = splice(nil, e, func(_, stored []byte) ([]byte, error) {
		var last []byte
		known = eachLabel(stored, func(key, value []byte) {
			if string(key) == name {
				last, has = value, true
			}
		})
		if has {
			value = l.interned.of(last)
		}
		return nil, nil
	})
	return value, has, known
}

// Labels returns the labels of an entry, from its stored bytes if they say it
// plainly. It is meant for bytecache.Options.
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

// Fields returns the selectable fields of an entry. It is meant for
// bytecache.Options.
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

// own copies attributes: their strings may be parts of the decoded object.
func (v *Version) own(m map[string]string) map[string]string {
	out := make(map[string]string, len(m))
	for key, value := range m {
		out[v.labels.interned.of([]byte(key))] = v.labels.interned.of([]byte(value))
	}
	return out
}

// interned keeps one copy of strings that many objects have. It forgets all of
// them when there are too many: most are unique then.
type interned struct {
	mu     sync.Mutex
	copies map[string]string // guarded by mu
}

const (
	maxInterned       = 4096
	maxInternedString = 64
)

func (i *interned) of(s []byte) string {
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
