package reads

import (
	"bytes"
	"context"
	"fmt"
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/klog/v2"

	"triune.dev/shared/bytecache"
	"triune.dev/shared/etcdstore"
)

// An event of a Table watch is a Table of one row. All but the row and the revision is
// the same for all objects of a kind, and the row is printed once for all who watch, and
// again when an age in it turns. Only the first event of a stream says what the columns
// are.

// tableShell is what is around the row in an event.
type tableShell struct {
	style tableStyle
	// What stands before the revision, after it with and without the columns, and
	// after the row.
	head, columns, noColumns, tail []byte
	// bookmarks are the last ones, with and without columns.
	bookmark [2]lastBookmark
}

// shell returns what is around the rows of a style.
func (f *frames) shell(ctx context.Context, h *Handlers, r *etcdstore.WatchRequest, s tableStyle) (*tableShell, error) {
	if known, ok := f.shells.Load(s); ok {
		return known.(*tableShell), nil
	}
	obj, err := r.BookmarkObject(1, false)
	if err != nil {
		return nil, err
	}
	made := &tableShell{style: s}
	for _, noColumns := range []bool{false, true} {
		style := s
		style.noHeaders = noColumns
		table, err := h.convert(ctx, obj, style, nil)
		if err != nil {
			return nil, err
		}
		table.Rows = table.Rows[:0]
		encoded, err := encodeTable(table, s.version)
		if err != nil {
			return nil, err
		}
		head, rest, ok := bytes.Cut(encoded, []byte(`"resourceVersion":"1"`))
		end := bytes.LastIndex(rest, []byte(`"rows":[]`))
		if !ok || end < 0 {
			return nil, errRows
		}
		end += len(`"rows":[`)
		made.head = append(bytes.Clone(head), `"resourceVersion":"`...)
		made.tail = bytes.TrimSuffix(rest[end:], []byte("\n"))
		middle := append([]byte{'"'}, rest[:end]...)
		if noColumns {
			made.noColumns = middle
		} else {
			made.columns = middle
		}
	}
	known, _ := f.shells.LoadOrStore(s, made)
	return known.(*tableShell), nil
}

// row returns the row of an object in the Table of itself, at a revision that need not
// be the entry's.
func (h *Handlers) row(ctx context.Context, e *bytecache.Entry, revision int64, s tableStyle) ([]byte, error) {
	key, now := rowOf(e, revision, s), time.Now()
	if row := h.tables.get(key, now); row != nil {
		return row, nil
	}
	obj, err := h.decodeRow(e, revision, s)
	if err != nil {
		return nil, err
	}
	until := unchangedUntil(obj, now)
	table, err := h.convert(ctx, obj, s, nil)
	if err == nil && len(table.Rows) != 1 {
		err = errRows
	}
	if err != nil {
		return nil, notPrinted(e, err)
	}
	row, err := encodeRow(&table.Rows[0], nil)
	if err != nil {
		return nil, notPrinted(e, err)
	}
	// Unlike that of a list, the row may be of a state that nobody else needs any more.
	h.tables.put(key, row, e.Size(), until)
	return row, nil
}

// notPrinted ends a stream without a word, as upstream does when it cannot encode.
func notPrinted(e *bytecache.Entry, err error) error {
	klog.ErrorS(err, "watch ended: an object cannot be shown in a table", "key", e.Key)
	return fmt.Errorf("%w: %w", errGone, err)
}

// appendRow appends the event that shows an entry at a revision.
func (s *watchStream) appendRow(dst []byte, event watch.EventType, e *bytecache.Entry, revision int64) ([]byte, error) {
	row, err := s.row(s.ctx, e, revision, s.media.table.style)
	if err != nil {
		return dst, err
	}
	t := s.media.table
	dst = append(appendJSONHead(dst, event), t.head...)
	dst = strconv.AppendInt(dst, revision, 10)
	if s.withColumns() {
		dst = append(dst, t.columns...)
	} else {
		dst = append(dst, t.noColumns...)
	}
	return append(append(append(dst, row...), t.tail...), jsonTail...), nil
}

// withColumns tells whether the next event says what the columns are, and counts it as
// sent.
func (s *watchStream) withColumns() bool {
	first := !s.headed
	s.headed = true
	return first && !s.media.table.style.noHeaders
}

// tableBookmark makes the frame of a bookmark: a row of an object that has nothing but
// its revision.
func (s *watchStream) tableBookmark(revision int64, end bool) ([]byte, error) {
	style := s.media.table.style
	style.noHeaders = !s.withColumns()
	last := &s.media.table.bookmark[0]
	if style.noHeaders {
		last = &s.media.table.bookmark[1]
	}
	return last.get(revision, end, func() ([]byte, error) {
		obj, err := s.request.BookmarkObject(revision, end)
		if err != nil {
			return nil, err
		}
		table, err := s.convert(s.ctx, obj, style, nil)
		if err != nil {
			return nil, err
		}
		encoded, err := encodeTable(table, style.version)
		return appendFrame(nil, false, watch.Bookmark, encoded), err
	})
}
