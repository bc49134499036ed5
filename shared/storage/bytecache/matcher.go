package bytecache

// Matcher matches entries against a term.
type Matcher struct {
	cache  *Cache
	term   Term
	key    LabelFilter
	values []LabelFilter
}

// Matcher returns a Matcher for the entries of this cache.
func (c *Cache) Matcher(t Term) Matcher {
	m := Matcher{cache: c, term: t}
	m.key, m.values = t.filter()
	return m
}

// Match reports whether an entry matches the term, and reads no more of the entry than
// necessary. It fails if the entry cannot be read.
func (m *Matcher) Match(e *Entry) (bool, error) {
	if e.absent != 0 && m.absent(e.absent) {
		return false, nil
	}
	value, has, err := m.cache.valueOf(e, m.term.Field, m.term.Key)
	return has && m.term.allows(value), err
}

// absent reports whether the filter alone excludes a match, given the bits that are not set
// in it.
func (m *Matcher) absent(bits LabelFilter) bool {
	if bits&m.key != 0 {
		return true
	}
	for _, value := range m.values {
		if bits&value == 0 {
			return false
		}
	}
	return len(m.values) > 0
}
