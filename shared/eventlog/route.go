package eventlog

import (
	"path"
	"strings"
	"sync"
)

// DefaultCluster is the first part of the streams' names unless another one is
// configured; clusters that share a NATS account need different ones.
const DefaultCluster = "triune"

// Tier is one of the servers that have a stream.
type Tier string

const (
	Aggregator Tier = "aggregator"
	Core       Tier = "core"
	Extensions Tier = "extensions"
)

// Tiers are all that have a stream.
var Tiers = []Tier{Aggregator, Core, Extensions}

// Routes says which stream and subject a key's changes are published on. The
// rule is fixed, so that relay and readers need not tell each other; methods are
// safe for concurrent use. Make one with NewRoutes.
type Routes struct {
	cluster, prefix string

	mu    sync.RWMutex
	known map[string]Route // by resource; guarded by mu
}

// maxRoutes bounds the routes that are remembered: with each CRD that is made and deleted
// comes another one. Where there are more, it begins anew.
const maxRoutes = 32 << 10

// Route is where the changes of one resource go.
type Route struct {
	Tier            Tier
	Stream, Subject string
}

// NewRoutes returns the routes of a cluster for keys below prefix (--etcd-prefix), which
// is "/registry" in Kubernetes. As in kube-apiserver, "registry" and "/registry/" are
// the same.
func NewRoutes(cluster, prefix string) *Routes {
	prefix = path.Join("/", prefix)
	if prefix != "/" {
		prefix += "/"
	}
	return &Routes{cluster: cluster, prefix: prefix}
}

// Prefix is the beginning of all keys that have a route, with a slash at its
// end.
func (r *Routes) Prefix() string { return r.prefix }

// Keys is where the relay of a cluster keeps what it must remember. Every reader needs
// to find it, and clusters may share an etcd.
func (r *Routes) Keys() string { return path.Join(DefaultKeys, r.cluster, r.prefix) + "/" }

// Of returns the route of a key. The key must begin with Prefix.
func (r *Routes) Of(key string) Route {
	resource, _ := resourceOf(strings.TrimPrefix(key, r.prefix))
	r.mu.RLock()
	known, ok := r.known[resource]
	r.mu.RUnlock()
	if ok {
		return known
	}
	first, second, _ := strings.Cut(resource, "/")
	route := Route{Tier: tierOf(resource)}
	route.Stream = r.Stream(route.Tier)
	route.Subject = route.Stream + eventSubject + token(first)
	if second != "" {
		route.Subject += "." + token(second)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.known == nil || len(r.known) >= maxRoutes {
		r.known = map[string]Route{}
	}
	r.known[strings.Clone(resource)] = route
	return route
}

// OfPrefix returns the route of all keys that begin with prefix, and false where
// they have more than one.
func (r *Routes) OfPrefix(prefix string) (Route, bool) {
	below, ok := strings.CutPrefix(prefix, r.prefix)
	if !ok {
		return Route{}, false
	}
	if _, whole := resourceOf(below); !whole {
		return Route{}, false
	}
	return r.Of(prefix), true
}

// resourceOf returns the part of a key below the prefix that names its resource.
// Groups, which have a dot, stand before their resources, and so do the two
// kinds of objects below services; everything else has one segment. It is whole
// when a slash ends it.
func resourceOf(below string) (resource string, whole bool) {
	end := strings.IndexByte(below, '/')
	if end < 0 {
		return below, false
	}
	if first := below[:end]; strings.IndexByte(first, '.') < 0 && first != "services" {
		return first, true
	}
	next := strings.IndexByte(below[end+1:], '/')
	if next < 0 {
		return below, false
	}
	return below[:end+1+next], true
}

// apiServices are all that the aggregator keeps. The other resources of their group, if
// there are any, are custom ones.
const apiServices = "apiregistration.k8s.io/apiservices"

// tierOf says whose a resource is: the groups that have a dot are those of CRDs.
func tierOf(resource string) Tier {
	first, _, _ := strings.Cut(resource, "/")
	switch {
	case resource == apiServices:
		return Aggregator
	case strings.IndexByte(first, '.') >= 0:
		return Extensions
	default:
		return Core
	}
}

// Subjects of a stream, each after the stream's name. All messages of a reader's
// stream reach it, so progress and resets need no subject per resource.
const (
	eventSubject    = ".event."
	progressSubject = ".progress"
	resetSubject    = ".reset"
	// fenceSubject has the progress that each relay publishes first.
	fenceSubject = ".fence"
	allSubjects  = ".>"
	// askSubject is none of the stream's: readers publish on it to be told of
	// progress.
	askSubject = "-ask"
)

// Stream returns the name of a tier's stream.
func (r *Routes) Stream(tier Tier) string { return r.cluster + "-" + string(tier) }

// token makes one token of a NATS subject of a segment of a key: what has a
// meaning in subjects, and all that is not printable ASCII, becomes %XX.
func token(segment string) string {
	const hex = "0123456789ABCDEF"
	var b strings.Builder
	for i := range len(segment) {
		switch c := segment[i]; {
		case c <= ' ' || c >= 0x7f || c == '.' || c == '*' || c == '>' || c == '%':
			b.WriteByte('%')
			b.WriteByte(hex[c>>4])
			b.WriteByte(hex[c&0x0f])
		default:
			b.WriteByte(c)
		}
	}
	if b.Len() == 0 {
		return "%" // no segment gives this, and a token must not be empty
	}
	return b.String()
}
