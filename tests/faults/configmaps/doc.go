// Package configmaps sends single requests about config maps to the API, as raw
// HTTP, and records what came back in a [history.History].
//
// No client library stands between: nothing is retried, cached or reordered, and
// a request whose outcome is not known is recorded as such.
package configmaps
