package bytecache

import (
	"sort"
	"time"
)

// changeLog is the recent changes of one resource, in the order of their revisions. It
// consists of blocks, so that a stalled reader retains one block instead of the whole log,
// and dropping the oldest changes copies nothing.
type changeLog struct {
	// blocks is sorted, oldest first. No block is empty, and no revision is in two blocks.
	blocks []*block
	// end is the number of the next change. Changes are numbered within a section.
	end int64
	// section counts the resets of the log, which invalidate the numbers.
	section int64
	// floor is the revision after which the log has every change.
	floor int64
	bytes int64
	// budget is shared by all logs of the space.
	budget *logBudget
}

// block is a part of a log. Appended changes are never overwritten, so a slice of changes
// that was taken under the lock can be read without it.
type block struct {
	changes []*Change
	// first is the number of changes[0].
	first int64
	bytes int64
	// at is the time at which the last change was appended.
	at time.Time
}

// A block is full, and the next revision begins another one, at either bound.
const (
	// A block is full at either limit; the next revision then begins another block.
	blockChanges = 256
	blockBytes   = 256 << 10
)

func (b *block) last() int64 { return b.changes[len(b.changes)-1].Revision }

// full reports whether the next revision goes to another block. The limit in bytes is lower
// in a small log, because the log drops whole blocks.
func (b *block) full(limit int64) bool {
	return len(b.changes) >= blockChanges || b.bytes >= min(blockBytes, limit/8)
}

// first returns the number of the oldest change in the log.
func (l *changeLog) first() int64 {
	if len(l.blocks) == 0 {
		return l.end
	}
	return l.blocks[0].first
}

// length returns the number of changes in the log.
func (l *changeLog) length() int { return int(l.end - l.first()) }

// append adds the changes of complete revisions.
func (l *changeLog) append(now time.Time, changes ...*Change) {
	l.blocks = fill(l.blocks, changes, l.end, l.budget.limit, now)
	l.end += int64(len(changes))
	for _, c := range changes {
		l.count(c.size())
	}
}

// count adds to the size of the log.
func (l *changeLog) count(bytes int64) {
	l.bytes += bytes
	l.budget.bytes.Add(bytes)
}

// fill appends changes, which begin at the given number, to blocks.
func fill(blocks []*block, changes []*Change, number, limit int64, now time.Time) []*block {
	for at, c := range changes {
		begins := at == 0 || c.Revision != changes[at-1].Revision
		if len(blocks) == 0 || begins && blocks[len(blocks)-1].full(limit) {
			blocks = append(blocks, &block{first: number + int64(at)})
		}
		b := blocks[len(blocks)-1]
		b.changes = append(b.changes, c)
		b.bytes += c.size()
		b.at = now
	}
	return blocks
}

// oldest returns the time of the oldest block; ok reports whether it may be dropped. The
// newest block, for which cursors are being woken, may be dropped only if it is from before
// since.
func (l *changeLog) oldest(since time.Time) (at time.Time, ok bool) {
	if len(l.blocks) == 0 {
		return time.Time{}, false
	}
	at = l.blocks[0].at
	return at, len(l.blocks) > 1 || at.Before(since)
}

// dropOldest drops the oldest block, and calls forget for each of its changes.
func (l *changeLog) dropOldest(forget func(*Change)) {
	oldest := l.blocks[0]
	l.count(-oldest.bytes)
	l.floor = oldest.last()
	for _, c := range oldest.changes {
		forget(c)
	}
	l.blocks[0] = nil
	l.blocks = l.blocks[1:]
}

// after returns the number of the first change after a revision.
func (l *changeLog) after(revision int64) int64 {
	at := sort.Search(len(l.blocks), func(i int) bool { return l.blocks[i].last() > revision })
	if at == len(l.blocks) {
		return l.end
	}
	b := l.blocks[at]
	return b.first + int64(sort.Search(len(b.changes), func(i int) bool { return b.changes[i].Revision > revision }))
}

// from returns the changes from a number on, up to the end of their block; more reports
// whether there are later blocks. The number must be in the log or equal to end.
func (l *changeLog) from(number int64) (changes []*Change, more bool) {
	if number == l.end {
		return nil, false
	}
	// Nearly all readers want the newest block.
	at := len(l.blocks) - 1
	if l.blocks[at].first > number {
		at = sort.Search(at, func(i int) bool { return l.blocks[i].first > number }) - 1
	}
	b := l.blocks[at]
	return b.changes[number-b.first : len(b.changes) : len(b.changes)], at < len(l.blocks)-1
}

// reset drops all changes; the next ones are after revision.
func (l *changeLog) reset(revision int64) {
	l.count(-l.bytes)
	l.blocks, l.floor = nil, revision
	l.section++
}
