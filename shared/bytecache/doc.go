// Package bytecache keeps the stored bytes of every object that is read in this
// process, and the changes that were made to them lately.
//
// A [Space] is the key space of one etcd. It takes what the event log says, in
// order, by Apply and Reset, and hands each change to the [Cache] of the resource
// whose prefix the key has. A Cache is empty until somebody needs it; then it reads
// its keys from etcd once and follows the changes from there ("load-then-follow").
//
// Nothing here is decoded. An [Entry] is a key, a revision and the bytes that etcd
// has, decrypted if they were encrypted. What is derived from them (JSON, frames of
// watch events) is made by those who serve, once per form, hung on the entry, and
// dropped when the common budget is used up.
//
// Where all stored bytes together are more than a bound, those that were not read
// lately are held compressed ([Space.Pack]), each object by itself, with a dictionary
// made of others of its resource. [Entry.Data] restores them for the caller; only what
// is read again soon is held as it is again, within the bound, so that a LIST of
// everything fills nothing.
//
// The entries of a Cache live in a copy-on-write tree. A [Snapshot] is that tree at
// one revision; it costs nothing to take, and what changes later does not touch it.
// A [Cursor] reads the changes after a revision: all that there are at once, and
// then it waits. It owns no buffer, so a reader that does not read holds nothing; if
// the log has moved on meanwhile, it continues from the history of the event log. One
// that says what it is interested in ([Interest]) sleeps through everything else, and
// goes on behind it. For one that can be pushed to ([Cursor.PushTo]) changes are handed on
// while its owner sleeps, by one goroutine for many; the owner is woken for what cannot be
// handed on without waiting.
//
// What a reset of the event log does: every Cache reads its keys again. A Cursor that
// has read everything up to the reset goes on, any other one ends with an
// [ExpiredError]. If etcd itself is another one (a restored backup, see
// [Space.Replace]), all of them end.
//
// What is bounded, in bytes: the log of each Cache and the states it keeps for pages
// of LISTs (see [Config]), and all derived forms together ([Budget]). What is not:
// the stored bytes themselves, compressed or not, a Snapshot for as long as somebody holds it, and the
// block of the log, of 256 kB or one revision, in which a reader is stuck.
//
// Locks, in the order in which they are taken: that of a Cursor that can be pushed to,
// which its owner holds while it is awake; a Space's; a Cache's. Neither of the latter is held
// while etcd or the event log is asked, a value is decrypted by a key management service,
// an index is built or cursors are woken.
//
// A Cache whose values a key management service decrypts takes its changes by way of a
// queue, bounded like its log, so that a service that hangs makes this Cache late and no
// other. What is late is not told: its [Cache.Revision] stays behind, and who needs more
// waits in [Cache.Await] for as long as he wants to.
//
// Order is promised for every Cache: changes come in the order of their revisions,
// a revision is never split over two calls, and what Snapshot and Cursor call their
// revision is complete: nothing at or before it is still to come.
package bytecache
