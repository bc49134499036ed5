package bytecache

import "hash/maphash"

// Sketch is a Bloom filter of the labels of one object. Where it says that a label is not
// there, it is not, and nothing but the Entry has to be read to know that: to look for a
// label in each of many objects is to wait for memory. The zero value is that of an
// object without labels.
type Sketch uint64

// Add adds a label.
func (s *Sketch) Add(key, value []byte) {
	of := maphash.Bytes(keySeed, key)
	*s |= keyBits(of) | valueBits(of, maphash.Bytes(keySeed, value))
}

func keyBits(key uint64) Sketch { return 1 << (key & 63) }

// valueBits are those of a value, which are others with another key.
func valueBits(key, value uint64) Sketch {
	both := (value ^ key>>6) * 0x9e3779b97f4a7c15 // 2⁶⁴ divided by the golden ratio
	return 1<<(both>>58) | 1<<(both>>52&63)
}

// bits are those that each object with the label of a term has, for any value, or for each
// of its values. A field has none.
func (t *Term) bits() (key Sketch, values []Sketch) {
	if t.Field {
		return 0, nil
	}
	of := maphash.String(keySeed, t.Key)
	for _, value := range t.Values {
		values = append(values, valueBits(of, maphash.String(keySeed, value)))
	}
	return keyBits(of), values
}

// Judge tells which entries meet a term.
type Judge struct {
	cache  *Cache
	term   Term
	key    Sketch
	values []Sketch
}

// Judge returns the one for entries of this cache.
func (c *Cache) Judge(t Term) Judge {
	j := Judge{cache: c, term: t}
	j.key, j.values = t.bits()
	return j
}

// Meets tells whether an entry meets the term, reading no more of it than that takes. The
// error says that it cannot be found out.
func (j *Judge) Meets(e *Entry) (bool, error) {
	if e.absent != 0 && j.absent(e.absent) {
		return false, nil
	}
	value, has, err := j.cache.valueOf(e, j.term.Field, j.term.Key)
	return has && j.term.wants(value), err
}

// absent tells of an entry without some bits that it does not meet the term.
func (j *Judge) absent(bits Sketch) bool {
	if bits&j.key != 0 {
		return true
	}
	for _, value := range j.values {
		if bits&value == 0 {
			return false
		}
	}
	return len(j.values) > 0
}
