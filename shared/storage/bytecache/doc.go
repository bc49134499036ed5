// Package bytecache keeps the stored bytes of every object that this process reads, and
// the recent changes to these objects.
//
// # Types
//
// A [Space] is the key space of one etcd. The event log feeds it in order, through Apply
// and Reset, and the Space passes each change to the [Cache] that owns the prefix of the
// key. A Cache is empty until it is first needed. Then it reads its keys from etcd once
// and follows the changes from there (load-then-follow).
//
// An [Entry] is a key, a revision and the bytes in etcd, decrypted if they were encrypted.
// Nothing here decodes them. The packages that serve objects derive other forms from an
// Entry or a [Change], such as JSON or watch event frames. Each form is rendered once,
// attached to its Entry or Change, and dropped when the shared [Budget] is used up.
//
// The entries of a Cache are in a copy-on-write tree. A [Snapshot] is that tree at one
// revision: it costs nothing to take, and later changes do not affect it.
//
// A [Cursor] reads the changes after a revision: first all available changes, then each new
// one as it arrives. It owns no buffer, so an idle reader retains nothing. If the log has
// discarded changes that the cursor has not read, the cursor reads them from the history of
// the event log. A cursor with an [Interest] is woken only by matching changes and skips the
// others. A cursor with a [Pusher] (see [Cursor.PushTo]) has changes delivered while its
// owner sleeps, by one goroutine for many cursors; the owner wakes up only for changes that
// cannot be pushed without blocking.
//
// # Compression
//
// When the stored bytes of all caches exceed a limit, [Space.RunCompressor] compresses the
// entries that were not read recently. Each entry is compressed by itself, with a
// dictionary made from other entries of its resource. [Entry.Data] decompresses them for
// the caller. Only entries that are read again soon are stored uncompressed again, within
// the limit, so that a LIST of everything does not fill the memory.
//
// # Resets
//
// After a reset of the event log every Cache reads its keys again. A Cursor that has read
// everything up to the reset continues; any other cursor ends with an [ExpiredError]. If
// etcd itself was replaced (a restored backup, see [Space.Replace]), every cursor ends.
//
// # Limits
//
// The log of each Cache and its snapshots pinned for pages of LISTs are bounded in bytes
// (see [Config]), as are all derived forms together ([Budget]). Not bounded are the stored
// bytes themselves, compressed or not, a Snapshot for as long as it is referenced, and the
// log block (256 kB or one revision) that a stalled reader retains.
//
// # Concurrency
//
// All types are safe for concurrent use unless their comment says otherwise. Locks are
// taken in this order: the lock of a pushable Cursor, which its owner holds while it is
// awake; the Space's; the Cache's. The locks of Space and Cache are not held during requests
// to etcd, the event log or a key management service, while an index is built, or while
// cursors are woken.
//
// A Cache whose values are decrypted by a key management service receives its changes
// through a queue, bounded like its log, so that a hanging service delays this Cache only.
// [Cache.Revision] does not include queued changes; a caller that needs them waits in
// [Cache.Await] until its own context ends.
//
// Every Cache receives changes in the order of their revisions, and never a part of a
// revision. The revision reported by a Snapshot or Cursor is complete: no change at or
// before it is still to come.
package bytecache
