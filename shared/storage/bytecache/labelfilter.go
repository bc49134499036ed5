package bytecache

import "hash/maphash"

// LabelFilter is a Bloom filter of the labels of one object. If the filter excludes a label
// the object does not have it. The filter is part of the Entry, so a scan of many objects
// for a label does not wait for memory to load the others' bytes. The zero value is the
// filter of an object without labels.
type LabelFilter uint64

// Add adds a label.
func (s *LabelFilter) Add(key, value []byte) {
	hash := maphash.Bytes(keySeed, key)
	*s |= keyFilter(hash) | valueFilter(hash, maphash.Bytes(keySeed, value))
}

func keyFilter(key uint64) LabelFilter { return 1 << (key & 63) }

// valueFilter returns the bits of a value, which depend on the key.
func valueFilter(key, value uint64) LabelFilter {
	both := (value ^ key>>6) * 0x9e3779b97f4a7c15 // 2⁶⁴ divided by the golden ratio
	return 1<<(both>>58) | 1<<(both>>52&63)
}

// filter returns the bits in the filter of every object that has the label of the term: key
// for any value, values for each of the term's values. A field has none.
func (t *Term) filter() (key LabelFilter, values []LabelFilter) {
	if t.Field {
		return 0, nil
	}
	hash := maphash.String(keySeed, t.Key)
	for _, value := range t.Values {
		values = append(values, valueFilter(hash, maphash.String(keySeed, value)))
	}
	return keyFilter(hash), values
}
