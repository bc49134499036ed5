// Package reads serves GET and LIST over HTTP from the byte cache.
//
// The handlers answer what they can answer exactly as kube-apiserver does, and
// hand everything else, before a byte is written, to the fallback: upstream's
// handler over the same storage. A malformed parameter, an object that does not
// exist, an encoding that is seldom asked for, a state that is no longer in the
// cache: the fallback has the answer, and the right error.
//
// A GET or LIST without a resourceVersion is linearizable. A GET confirms the mod
// revision of its key with etcd, a LIST learns etcd's revision; the cache waits, if it
// must, until it has that, and answers.
//
// A LIST is an envelope around the bytes of its items. It is written in chunks, and
// none of it is held but the chunk. Long lists of everything, and compressed ones,
// consist of blocks of some objects, whose ends are decided by the keys, so that a change
// to one object leaves the others' blocks as they are; each block is made once, and kept
// as long as there is room for it.
package reads
