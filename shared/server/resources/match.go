package resources

import "strings"

// Level is the part of a resource that a path refers to.
type Level int

const (
	// Collection is all objects of a cluster-scoped resource, or those of a namespaced resource
	// in one namespace.
	Collection Level = iota
	// AllNamespaces is all objects of a namespaced resource across namespaces.
	AllNamespaces
	// Item is one object, or a subresource of one object.
	Item
	// ItemPath is a path below an item, as for proxy subresources.
	ItemPath
)

// Target identifies the resource that a path below a group-version refers to.
type Target struct {
	// Resource is the key in the table: "pods" or "pods/status".
	Resource string
	Level    Level
	// Watch is set for the deprecated paths that begin with watch/.
	Watch bool
}

// scopes looks up whether a resource (or resource/subresource) exists and is namespaced.
type scopes interface {
	scope(resource string) (namespaced, found bool)
}

// Match returns the target of a path. path is decoded and relative to the group-version, as in
// "namespaces/default/pods/web". Match returns false if no resource of the group-version has
// such a path. It does not consider the HTTP method.
//
// The grammar is that of the Kubernetes API conventions: a collection is RESOURCE or
// namespaces/NS/RESOURCE, an item adds NAME, and a subresource adds another segment. The prefix
// watch/ is deprecated since 1.11.
//
// Trailing slashes are ignored. NS, NAME and the segments of a path below an item may be empty,
// as in kube-apiserver: authorization also takes an empty NS to mean all namespaces, the
// handler refuses an empty NAME with a better message than 404, and a double slash may mean
// something to a proxied server.
func Match(known scopes, path string) (Target, bool) {
	segments := strings.Split(strings.TrimRight(strings.TrimPrefix(path, "/"), "/"), "/")
	watch := segments[0] == "watch" && len(segments) > 1
	if watch {
		segments = segments[1:]
	}
	// namespaces/NS/x is a namespaced resource x rather than a subresource x of the namespace
	// NS; no group has both.
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

// matchNamespaced matches the segments after namespaces/NS.
func matchNamespaced(known scopes, segments []string) (Target, bool) {
	if namespaced, found := known.scope(segments[0]); !found || !namespaced {
		return Target{}, false
	}
	return matchBelow(known, segments)
}

// matchCluster matches a path without a namespace.
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

// matchBelow matches RESOURCE[/NAME[/SUBRESOURCE[/PATH]]]. The grammar has paths below a
// subresource, but not below the resource itself.
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
