// Package history decides whether what clients were told about a few config maps
// of one namespace is linearizable: whether every answer can be explained by one
// order of all requests in which each takes effect at one moment between its
// beginning and its end.
//
// GET, LIST (without resourceVersion), create, update with a resourceVersion,
// patch without one and delete with a precondition all count, also when they are
// refused. The whole namespace is one object of the model, because a LIST reads
// several keys at one moment.
//
// The resourceVersions in the answers are checked too. They are revisions of
// etcd, so writes take effect in the order of theirs; a LIST shows exactly what
// the revision that it names consists of; nothing goes backwards.
//
// A request that broke off, or was answered 5xx, may have taken effect at any
// time after it was sent, or never. If somebody has seen its value, it has.
package history
