package keywatch

import "k8s.io/apiserver/pkg/storage"

// plan describes the beginning of a WATCH.
type plan struct {
	// list means that the watch begins with ADDED events for the existing objects.
	list bool
	// atLeast is the revision that the listed state must have reached.
	atLeast int64
	// anyMember means that any state at or after atLeast may be listed.
	anyMember bool
	// after is the revision after which events are sent without a list; 0 means the
	// current one.
	after int64
	// endBookmark marks the end of the list with a bookmark.
	endBookmark bool
	// bookmarks are sent from time to time.
	bookmarks bool
}

// planWatch applies the semantics of resourceVersion and sendInitialEvents (API
// concepts, "Resource versions": semantics for watch; KEP-3157) to a watch from
// the given version. initialEvents is the state of the WatchList feature, without
// which sendInitialEvents does not exist.
func planWatch(version int64, opts storage.ListOptions, initialEvents, uncached bool) plan {
	send := opts.SendInitialEvents
	if !initialEvents {
		send = nil
	}
	p := plan{bookmarks: opts.Predicate.AllowWatchBookmarks && !uncached}
	switch {
	case send == nil && version == 0:
		// Both no version and "0" have always begun with the existing objects.
		p.list = true
	case send != nil && *send:
		p.list = true
		p.atLeast = version
		p.endBookmark = opts.Predicate.AllowWatchBookmarks
	default:
		p.after = version
	}
	p.anyMember = p.list && opts.ResourceVersion != ""
	return p
}
