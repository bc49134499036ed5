// Package configmaps sends single requests for config maps to the API, as raw HTTP, and
// records the answers in a [history.History].
//
// It uses no client library: nothing is retried, cached or reordered, and a request with an
// unknown outcome is recorded as such.
package configmaps
