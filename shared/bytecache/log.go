package bytecache

import (
	"sort"
	"time"
)

// changeLog is the recent changes of one resource, in order of their revisions. It
// is made of blocks: a reader that is stuck with a part of the log keeps one block
// alive and not the whole log, and forgetting the oldest copies nothing.
type changeLog struct {
	// blocks, oldest first; none is empty, and no revision is in two of them.
	blocks []*block
	// end is the number of the next change; changes are numbered within a section.
	end int64
	// section counts the restarts: a number means nothing in another section.
	section int64
	// floor: every change after this revision is in the log.
	floor int64
	bytes int64
	// budget is that of all logs of the space.
	budget *logBudget
}

// block is a part of a log. What has been appended is never written again, so a
// part of changes can be read without a lock after it was taken under one.
type block struct {
	changes []*Change
	// first is the number of changes[0].
	first int64
	bytes int64
	// at is when the last of changes came.
	at time.Time
}

// A block is full, and the next revision begins another one, at either bound.
const (
	blockChanges = 256
	blockBytes   = 256 << 10
)

func (b *block) last() int64 { return b.changes[len(b.changes)-1].Revision }

// full tells whether the next revision goes to another block. The second bound is
// smaller in a small log, for it is forgotten by blocks.
func (b *block) full(limit int64) bool {
	return len(b.changes) >= blockChanges || b.bytes >= min(blockBytes, limit/8)
}

// first is the number of the oldest change that is known.
func (l *changeLog) first() int64 {
	if len(l.blocks) == 0 {
		return l.end
	}
	return l.blocks[0].first
}

// length is the number of changes that are known.
func (l *changeLog) length() int { return int(l.end - l.first()) }

// append adds the changes of complete revisions, which have come now.
func (l *changeLog) append(now time.Time, changes ...*Change) {
	l.blocks = fill(l.blocks, changes, l.end, l.budget.limit, now)
	l.end += int64(len(changes))
	for _, c := range changes {
		l.count(c.size())
	}
}

// count notes that the log holds so many bytes more.
func (l *changeLog) count(bytes int64) {
	l.bytes += bytes
	l.budget.held.Add(bytes)
}

// fill adds changes, the first of which has the given number, to blocks.
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

// oldest returns when the oldest block came, if it may be forgotten: the newest one,
// which sleepers are being woken for, not before it is older than since.
func (l *changeLog) oldest(since time.Time) (at time.Time, ok bool) {
	if len(l.blocks) == 0 {
		return time.Time{}, false
	}
	at = l.blocks[0].at
	return at, len(l.blocks) > 1 || at.Before(since)
}

// forgetOldest forgets the oldest block. It calls forget for each change that is no longer
// known.
func (l *changeLog) forgetOldest(forget func(*Change)) {
	oldest := l.blocks[0]
	l.count(-oldest.bytes)
	l.floor = oldest.last()
	for _, c := range oldest.changes {
		forget(c)
	}
	l.blocks[0] = nil
	l.blocks = l.blocks[1:]
}

// after returns the number of the first change beyond a revision.
func (l *changeLog) after(revision int64) int64 {
	at := sort.Search(len(l.blocks), func(i int) bool { return l.blocks[i].last() > revision })
	if at == len(l.blocks) {
		return l.end
	}
	b := l.blocks[at]
	return b.first + int64(sort.Search(len(b.changes), func(i int) bool { return b.changes[i].Revision > revision }))
}

// from returns changes from a number on, which must be known or the next one, up to
// the end of their block; more tells that there are others after them.
func (l *changeLog) from(number int64) (changes []*Change, more bool) {
	if number == l.end {
		return nil, false
	}
	// The newest block is what nearly all who read want.
	at := len(l.blocks) - 1
	if l.blocks[at].first > number {
		at = sort.Search(at, func(i int) bool { return l.blocks[i].first > number }) - 1
	}
	b := l.blocks[at]
	return b.changes[number-b.first : len(b.changes) : len(b.changes)], at < len(l.blocks)-1
}

// restart forgets everything: what comes is after revision.
func (l *changeLog) restart(revision int64) {
	l.count(-l.bytes)
	l.blocks, l.floor = nil, revision
	l.section++
}
