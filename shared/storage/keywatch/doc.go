// Package keywatch watches a range of keys through the byte cache. Every WATCH of Kubernetes'
// API is made of it: package etcdstore turns its events into objects, package reads writes
// them as bytes over HTTP.
//
// A [Source] is made once for a resource. Source.Prepare checks the parameters of a WATCH and
// returns a [Request]; Request.Start settles where it begins and returns a [Watch]. The files
// follow an event: plan.go decides what a watch begins with, watch.go finds the snapshot and
// the cursor and returns changes, event.go turns a change into an event for a selector,
// bookmarks.go decides when a bookmark is due, and status.go holds the errors that end a
// watch.
//
// Sources and Requests may be used by several goroutines, a Watch by one, but for
// [Watch.Wake].
package keywatch
