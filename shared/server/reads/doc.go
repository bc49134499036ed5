// Package reads serves GET, LIST and WATCH over HTTP from the byte cache.
//
// [NewResource] returns the handlers of a resource in one version. They answer the requests
// that they can answer exactly as kube-apiserver does. They pass all other requests, before
// a byte is written, to the fallback, upstream's handler over the same storage: requests
// with malformed parameters, for objects that do not exist, for rare encodings, or for a
// state that is no longer cached. The fallback has the answer, and the right error.
//
// A GET or LIST without a resourceVersion is linearizable. A GET confirms the mod revision
// of its key with etcd, and a LIST asks etcd for its revision. The handler then waits, if
// necessary, until the cache has that revision.
//
// A LIST is an envelope around the encoded items. It is written in chunks, and only one chunk
// is in memory. Long lists of a whole collection, and compressed ones, consist of blocks of
// objects. The keys determine the boundaries of the blocks, so that a change to one object
// does not affect the blocks of others. Each block is encoded once, and cached within the
// budget of the byte cache.
//
// A WATCH reads the changes with a cursor of the byte cache. The frame of an event is encoded
// once for all watches.
//
// All handlers are safe for concurrent use.
package reads
