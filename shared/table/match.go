package table

import "strings"

// Level says what part of a resource a path names.
type Level int

const (
	// Collection is the objects of a cluster-scoped resource, or those of a
	// namespaced one in one namespace.
	Collection Level = iota
	// AllNamespaces is a namespaced resource across namespaces.
	AllNamespaces
	// Item is one object, or a subresource of one object.
	Item
	// ItemPath is a path below an item, as the proxy subresources take.
	ItemPath
)

// Target is what a path below a group-version names.
type Target struct {
	// Resource is the key into the table: "pods" or "pods/status".
	Resource string
	Level    Level
	// Watch is set for the deprecated paths that begin with watch/.
	Watch bool
}

// scopes tells Match what it must know about resources: whether a resource (or
// resource/subresource) exists, and whether it is namespaced.
type scopes interface {
	scope(resource string) (namespaced, found bool)
}

// Match finds what path names. path is decoded and relative to the
// group-version, as in "namespaces/default/pods/web". It reports false when no
// resource of the group-version has such a path; whether the HTTP method fits is
// not its concern.
//
// The grammar is the one of the Kubernetes API conventions: a collection is
// RESOURCE or namespaces/NS/RESOURCE, an item adds NAME, a subresource adds a
// further segment; watch/ in front of any of them is deprecated since 1.11.
//
// Slashes at the end do not count. NS, NAME and the segments of a path below an
// item may be empty, as in kube-apiserver: an empty NS means all namespaces to
// whoever authorizes the request too, an empty NAME is refused by the handler with
// a better message than 404, and what a proxied server means by a double slash is
// not ours to say.
func Match(known scopes, path string) (Target, bool) {
	segments := strings.Split(strings.TrimRight(strings.TrimPrefix(path, "/"), "/"), "/")
	watch := segments[0] == "watch" && len(segments) > 1
	if watch {
		segments = segments[1:]
	}
	// namespaces/NS/x is a namespaced resource x before it is a subresource x of
	// the namespace NS; no group has both.
	if len(segments) >= 3 && segments[0] == "namespaces" {
		if target, ok := matchNamespaced(known, segments[2:]); ok {
			target.Watch = watch
			return target, true
		}
	}
	target, ok := matchCluster(known, segments)
	target.Watch = watch
	return target, ok
}

// matchNamespaced matches what follows namespaces/NS.
func matchNamespaced(known scopes, segments []string) (Target, bool) {
	if namespaced, found := known.scope(segments[0]); !found || !namespaced {
		return Target{}, false
	}
	return matchBelow(known, segments)
}

// matchCluster matches a path that names no namespace.
func matchCluster(known scopes, segments []string) (Target, bool) {
	namespaced, found := known.scope(segments[0])
	switch {
	case !found:
		return Target{}, false
	case namespaced && len(segments) == 1:
		return Target{Resource: segments[0], Level: AllNamespaces}, true
	case namespaced:
		return Target{}, false
	}
	return matchBelow(known, segments)
}

// matchBelow matches RESOURCE[/NAME[/SUBRESOURCE[/PATH]]]. A path below a
// resource itself rather than below a subresource is not part of the grammar.
func matchBelow(known scopes, segments []string) (Target, bool) {
	switch len(segments) {
	case 1:
		return Target{Resource: segments[0], Level: Collection}, true
	case 2:
		return Target{Resource: segments[0], Level: Item}, true
	}
	resource := segments[0] + "/" + segments[2]
	if _, found := known.scope(resource); !found {
		return Target{}, false
	}
	if len(segments) == 3 {
		return Target{Resource: resource, Level: Item}, true
	}
	return Target{Resource: resource, Level: ItemPath}, true
}
