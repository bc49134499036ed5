package reads

import (
	"bytes"
	"context"
	"fmt"
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/klog/v2"

	"triune.dev/shared/storage/bytecache"
	"triune.dev/shared/storage/keywatch"
)

// An event of a Table watch is a Table of one row. Except for the row and the revision it is
// the same for all objects of a kind. The row is printed once for all watches, and again when
// an age in it changes. Only the first event of a stream has the columns.

// rowEnvelope is the part of an event around the row.
type rowEnvelope struct {
	style tableStyle
	// head precedes the revision, columns or noColumns follow it, and tail follows the row.
	head, columns, noColumns, tail []byte
	// bookmark has the last bookmarks with and without columns.
	bookmark [2]bookmarkCache
}

// rowEnvelope returns the envelope of the rows of a style.
func (f *frames) rowEnvelope(ctx context.Context, h *Handlers, r *keywatch.Request, s tableStyle) (*rowEnvelope, error) {
	if known, ok := f.rowEnvelopes.Load(s); ok {
		return known.(*rowEnvelope), nil
	}
	obj, err := r.BookmarkObject(1, false)
	if err != nil {
		return nil, err
	}
	made := &rowEnvelope{style: s}
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
			return nil, errRowsNotInOrder
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
	known, _ := f.rowEnvelopes.LoadOrStore(s, made)
	return known.(*rowEnvelope), nil
}

// row returns the row of an object in a Table of its own, at a revision that may differ
// from the entry's.
func (h *Handlers) row(ctx context.Context, e *bytecache.Entry, revision int64, s tableStyle) ([]byte, error) {
	key, now := newRowKey(e, revision, s), time.Now()
	if row := h.rows.get(key, now); row != nil {
		return row, nil
	}
	obj, err := h.decodeRow(e, revision, s)
	if err != nil {
		return nil, err
	}
	until := unchangedUntil(obj, now)
	table, err := h.convert(ctx, obj, s, nil)
	if err == nil && len(table.Rows) != 1 {
		err = errRowsNotInOrder
	}
	if err != nil {
		return nil, notPrinted(e, err)
	}
	row, err := encodeRow(&table.Rows[0], nil)
	if err != nil {
		return nil, notPrinted(e, err)
	}
	// Unlike a row of a list, this row may be the last reference to its entry.
	h.rows.put(key, row, e.Size(), until)
	return row, nil
}

// notPrinted ends a stream without an error event, as upstream does when it cannot encode.
func notPrinted(e *bytecache.Entry, err error) error {
	klog.ErrorS(err, "watch ended: an object cannot be shown in a table", "key", e.Key)
	return fmt.Errorf("%w: %w", errClosed, err)
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

// withColumns reports whether the next event has the columns, and records that it was sent.
func (s *watchStream) withColumns() bool {
	first := !s.columnsSent
	s.columnsSent = true
	return first && !s.media.table.style.noHeaders
}

// tableBookmark returns the frame of a bookmark: the row of an object that has only a
// revision.
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
