// Package keywatch watches a range of keys through the byte cache: it is what all WATCHes of
// Kubernetes' API have in common, whoever sends their events. Package etcdstore makes objects
// of them, package reads writes them as bytes over HTTP.
//
// A [Source] is made once for a resource. Source.Prepare checks the parameters of a WATCH and
// returns a [Request]; Request.Start settles where it begins and returns a [Watch]. Then the
// files are in the order in which an event travels: plan.go decides what a watch begins with,
// watch.go finds the snapshot and the cursor and hands out what has changed, event.go says what
// a change means to a client with a selector, bookmarks.go when a bookmark is due, and
// status.go what a client is told when the watch cannot go on.
//
// Sources and Requests may be used by several goroutines, a Watch by one, but for
// [Watch.Wake].
package keywatch
