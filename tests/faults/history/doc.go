// Package history decides whether the answers of clients about a few config maps of one
// namespace are linearizable: whether one order of all requests explains every answer, in
// which each request takes effect at one moment between its start and its end.
//
// It covers GET, LIST (without resourceVersion), create, update with a resourceVersion,
// patch without one, and delete with a precondition, including refused ones. The model is
// the whole namespace, because a LIST reads several keys at one moment.
//
// It also checks resourceVersions in the answers. They are revisions of etcd, so writes
// take effect in their order, a LIST shows exactly the state at its revision, and nothing
// goes backwards.
//
// A request that was interrupted or answered with 5xx may have taken effect at any time
// after it was sent, or never. If its value was seen, it has.
package history
