package reads

import (
	"context"
	"slices"
	"sort"
	"strings"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apiserver/pkg/storage"

	"triune.dev/shared/storage/bytecache"
)

// listResult is the result of a LIST.
type listResult struct {
	revision int64
	// snapshot is the state that is listed; nil if an index returned all entries.
	snapshot *bytecache.Snapshot
	// entries are the objects if selected is set. Otherwise the objects are the next count
	// ones of the snapshot from the key from on, all below prefix.
	entries      []*bytecache.Entry
	selected     bool
	prefix, from string
	count        int
	// more says that there are keys after last, the last key that was examined.
	more bool
	last string
	// total is the number of keys from the start of the list on.
	total int64
	// index is the index that was queried, as kube-apiserver's metrics call it, "" for none.
	index string
	// examined is the number of objects that were looked at.
	examined int
}

// incarnation returns that of the snapshot.
func (m *listResult) incarnation() int {
	if m.snapshot == nil {
		return 0
	}
	return m.snapshot.Incarnation
}

func (m *listResult) each(yield func(*bytecache.Entry) bool) {
	if m.selected {
		for _, e := range m.entries {
			if !yield(e) {
				return
			}
		}
		return
	}
	left := m.count
	m.snapshot.Ascend(m.from, func(e *bytecache.Entry) bool {
		if left == 0 {
			return false
		}
		left--
		return yield(e)
	})
}

// match finds the objects of a plan. ok is false if the fallback must answer.
func (h *Handlers) match(ctx context.Context, p *plan) (*listResult, bool) {
	least, ok := h.awaitRevision(ctx, p)
	if !ok {
		return nil, false
	}
	if p.selects() && !p.single && p.exact == 0 {
		if found, ok := h.byIndex(ctx, p, least); ok {
			return found, true
		}
	}
	snapshot, ok := h.snapshotFor(ctx, p, least)
	if !ok {
		return nil, false
	}
	m := &listResult{revision: snapshot.Revision, snapshot: snapshot, prefix: p.prefix, from: max(p.prefix, p.start)}
	if p.exact != 0 {
		m.revision = p.exact
	}
	switch {
	case p.single:
		return m, h.matchOne(p, m)
	case p.selects():
		return m, h.scan(ctx, p, m)
	default:
		h.matchAll(p, m)
		return m, true
	}
}

// matchOne matches the one key of a LIST by name.
func (h *Handlers) matchOne(p *plan, m *listResult) bool {
	m.selected, m.last = true, p.prefix
	e := m.snapshot.Get(p.prefix)
	if e == nil {
		return true
	}
	m.total, m.examined = 1, 1
	ok, err := h.meets(p, e)
	if ok {
		m.entries, m.count = []*bytecache.Entry{e}, 1
	}
	return err == nil
}

// matchAll takes all objects from the start on, up to the limit.
func (h *Handlers) matchAll(p *plan, m *listResult) {
	m.total = h.countFrom(m.snapshot, p)
	m.count, m.examined = int(m.total), int(m.total)
	if p.limit == 0 || m.total <= p.limit {
		return
	}
	m.count, m.examined, m.more = int(p.limit), int(p.limit), true
	left := p.limit
	m.snapshot.Ascend(m.from, func(e *bytecache.Entry) bool {
		m.last = e.Key
		left--
		return left > 0
	})
	h.counts.put(countKey{m.snapshot.Incarnation, m.snapshot.Revision, p.prefix, m.last + "\x00"}, m.total-p.limit)
}

// scan matches every object, for a selector without a useful index.
func (h *Handlers) scan(ctx context.Context, p *plan, m *listResult) bool {
	m.selected = true
	var failed error
	looked := 0
	// A term with an index that was not selective is frequent, and many objects match it. Their
	// attributes are read completely and cached, so a Matcher would not help.
	terms := slices.DeleteFunc(h.terms(p), h.config.Cache.Indexed)
	matchers := make([]bytecache.Matcher, len(terms))
	for i, t := range terms {
		matchers[i] = h.config.Cache.Matcher(t)
	}
	m.snapshot.Ascend(m.from, func(e *bytecache.Entry) bool {
		if !p.below(e.Key) {
			return false
		}
		if p.indexed != nil && !h.inIndex(p, e) {
			return true
		}
		if p.limit > 0 && int64(len(m.entries)) >= p.limit {
			m.more = true
			return false
		}
		if looked++; looked%256 == 0 {
			if failed = ctx.Err(); failed != nil {
				return false
			}
		}
		m.last = e.Key
		if mismatches(matchers, e) {
			return true
		}
		var ok bool
		if ok, failed = h.meets(p, e); failed != nil {
			return false
		}
		if ok {
			m.entries = append(m.entries, e)
		}
		return true
	})
	m.count, m.examined = len(m.entries), looked
	return failed == nil
}

const (
	// maxIndexQueries bounds the indexes that one request queries.
	maxIndexQueries = 3
	// fewEntries is the number of entries that are cheaper to match than another index is
	// to query.
	fewEntries = 64
	// maxSelectAttempts bounds the attempts to get an index and a snapshot of the same
	// state.
	maxSelectAttempts = 3
)

// byIndex finds objects by the terms of the selectors that have an index, at the revision
// least or later. ok is false if no index helps.
func (h *Handlers) byIndex(ctx context.Context, p *plan, least int64) (*listResult, bool) {
	terms := h.terms(p)
	if p.indexed != nil {
		terms = []bytecache.Term{{Field: true, Key: p.indexed.Field, Values: []string{p.indexed.Value}}}
	}
	if len(terms) == 0 {
		return nil, false
	}
	for range maxSelectAttempts {
		best, by, ok := h.selectShortest(ctx, terms)
		if !ok || best.Revision < least {
			return nil, false
		}
		m := &listResult{revision: best.Revision, selected: true, prefix: p.prefix, index: by, examined: len(best.Entries)}
		// Whether there is more depends on all entries of the index.
		last := lastBelow(p, best.Entries)
		entries, err := h.filter(p, best.Entries)
		if err != nil {
			return nil, false
		}
		m.entries, m.count = entries, len(entries)
		if p.limit == 0 || int64(len(entries)) < p.limit {
			return m, true
		}
		if p.indexed != nil {
			m.entries = entries[:p.limit]
			m.count = len(m.entries)
			m.last = m.entries[m.count-1].Key
			if m.more = last > m.last; !m.more {
				return m, true
			}
		}
		// Whether there is more also depends on objects that do not match.
		snapshot, ok := h.config.Cache.SnapshotAt(best.Revision)
		if !ok {
			continue // the cache has changed
		}
		m.snapshot = snapshot
		m.entries = entries[:p.limit]
		m.count = len(m.entries)
		m.last = m.entries[m.count-1].Key
		if p.indexed == nil {
			snapshot.Ascend(m.last+"\x00", func(e *bytecache.Entry) bool {
				m.more = p.below(e.Key)
				return false
			})
		}
		return m, true
	}
	return nil, false
}

// inIndex reports whether an entry is in the index of a plan.
func (h *Handlers) inIndex(p *plan, e *bytecache.Entry) bool {
	found, err := h.fieldsOf(e)
	return err == nil && found.Get(p.indexed.Field) == p.indexed.Value
}

// mismatches reports whether an entry does not match one of the terms, and reads no more of
// it than necessary.
func mismatches(matchers []bytecache.Matcher, e *bytecache.Entry) bool {
	for i := range matchers {
		if meets, err := matchers[i].Match(e); err == nil && !meets {
			return true
		}
	}
	return false
}

// lastBelow returns the key of the last entry in the collection of a plan.
func lastBelow(p *plan, entries []*bytecache.Entry) string {
	for _, e := range slices.Backward(entries) {
		if p.below(e.Key) {
			return e.Key
		}
	}
	return ""
}

// selectShortest queries the indexes of the terms that have one or are worth one, and
// returns the shortest result with the name of its index.
func (h *Handlers) selectShortest(ctx context.Context, terms []bytecache.Term) (best bytecache.Selection, by string, ok bool) {
	for i, term := range terms {
		if i >= maxIndexQueries {
			break
		}
		if !h.config.Cache.WorthIndex(term) {
			continue
		}
		s, err := h.config.Cache.Select(ctx, term)
		if err != nil {
			return best, by, false
		}
		if !s.Indexed || ok && len(s.Entries) >= len(best.Entries) {
			continue
		}
		best, by, ok = s, h.indexName(term), true
		if len(s.Entries) <= fewEntries {
			break
		}
	}
	return best, by, ok
}

// indexName returns the name that kube-apiserver gives a declared index, "" for others.
func (h *Handlers) indexName(t bytecache.Term) string {
	if !h.config.Cache.Declares(t) {
		return ""
	}
	if t.Field {
		return storage.FieldIndex(t.Key)
	}
	return storage.LabelIndex(t.Key)
}

// filter returns the entries that are in the collection, not before the start, and match
// the whole selector.
func (h *Handlers) filter(p *plan, entries []*bytecache.Entry) ([]*bytecache.Entry, error) {
	from := max(p.prefix, p.start)
	at := sort.Search(len(entries), func(i int) bool { return entries[i].Key >= from })
	entries = entries[at:]
	end := sort.Search(len(entries), func(i int) bool { return !p.below(entries[i].Key) })
	entries = entries[:end]
	var failed error
	entries = slices.DeleteFunc(entries, func(e *bytecache.Entry) bool {
		ok, err := h.meets(p, e)
		if err != nil {
			failed = err
		}
		return !ok
	})
	return entries, failed
}

// terms returns the terms that the cache can match.
func (h *Handlers) terms(p *plan) []bytecache.Term {
	terms := indexTerms(p)
	if h.config.OwnFields { // the cache has other fields
		terms = slices.DeleteFunc(terms, func(t bytecache.Term) bool { return t.Field })
	}
	return terms
}

// indexTerms returns the positive terms of a plan's selectors, those that probably match
// the fewest objects first.
func indexTerms(p *plan) []bytecache.Term {
	var terms []bytecache.Term
	for _, r := range p.field.Requirements() {
		// A missing field equals the empty string.
		if (r.Operator == selection.Equals || r.Operator == selection.DoubleEquals) && r.Value != "" && !metadataField(r.Field) {
			terms = append(terms, bytecache.Term{Field: true, Key: r.Field, Values: []string{r.Value}})
		}
	}
	requirements, selectable := p.label.Requirements()
	if !selectable {
		return nil
	}
	labelTerms := len(terms)
	for _, r := range requirements {
		switch r.Operator() {
		case selection.Equals, selection.DoubleEquals, selection.In:
			terms = append(terms, bytecache.Term{Key: r.Key(), Values: r.ValuesUnsorted()})
		case selection.Exists:
			terms = append(terms, bytecache.Term{Key: r.Key()})
		}
	}
	slices.SortStableFunc(terms[labelTerms:], func(a, b bytecache.Term) int { return breadth(a) - breadth(b) })
	return terms
}

func breadth(t bytecache.Term) int {
	if t.Values == nil {
		return 1 << 20
	}
	return len(t.Values)
}

// metadataField reports whether the key of an object determines a field.
func metadataField(name string) bool { return name == "metadata.name" || name == "metadata.namespace" }

// meets reports whether an entry matches the selectors of a plan.
func (h *Handlers) meets(p *plan, e *bytecache.Entry) (bool, error) {
	if e.Err != nil {
		return false, e.Err
	}
	if !p.label.Empty() {
		found, err := h.config.Cache.LabelsOf(e)
		if err != nil {
			return false, err
		}
		if !p.label.Matches(labels.Set(found)) {
			return false, nil
		}
	}
	if p.field.Empty() {
		return true, nil
	}
	if p.byKey {
		return p.field.Matches(keyFields{h.config.Namespaced, e.Key}), nil
	}
	found, err := h.fieldsOf(e)
	return err == nil && p.field.Matches(found), err
}

// keyFields are the selectable fields in the key of an object.
type keyFields struct {
	namespaced bool
	key        string
}

func (k keyFields) Has(field string) bool {
	return field == "metadata.name" || field == "metadata.namespace" && k.namespaced
}

func (k keyFields) Get(field string) string {
	slash := strings.LastIndexByte(k.key, '/')
	switch {
	case field == "metadata.name":
		return k.key[slash+1:]
	case field == "metadata.namespace" && k.namespaced:
		rest := k.key[:max(slash, 0)]
		return rest[strings.LastIndexByte(rest, '/')+1:]
	}
	return ""
}
