package eventlog

import (
	"path"
	"strings"
	"sync"
)

// DefaultCluster is the prefix of the names of streams unless another one is configured.
// Clusters that share a NATS account need different prefixes.
const DefaultCluster = "triune"

// Tier is one of the servers that own a stream.
type Tier string

const (
	Aggregator Tier = "aggregator"
	Core       Tier = "core"
	Extensions Tier = "extensions"
)

// Tiers lists every tier that owns a stream.
var Tiers = []Tier{Aggregator, Core, Extensions}

// Routes maps the keys of etcd to the streams and subjects that carry their changes. The
// mapping is fixed, so relay and readers need not exchange it. Make one with NewRoutes. Its
// methods are safe for concurrent use.
type Routes struct {
	cluster, prefix string

	mu    sync.RWMutex
	known map[string]Route // by resource; guarded by mu
}

// maxRoutes bounds the cache of routes, because each new CRD adds one. A full cache is cleared.
const maxRoutes = 32 << 10

// Route names the stream and subject of one resource.
type Route struct {
	Tier            Tier
	Stream, Subject string
}

// NewRoutes returns the routes of a cluster for keys below prefix (--etcd-prefix), which is
// "/registry" in Kubernetes. As in kube-apiserver, "registry" and "/registry/" mean the same.
func NewRoutes(cluster, prefix string) *Routes {
	prefix = path.Join("/", prefix)
	if prefix != "/" {
		prefix += "/"
	}
	return &Routes{cluster: cluster, prefix: prefix}
}

// Prefix returns the prefix of all keys that have a route. It ends in a slash.
func (r *Routes) Prefix() string { return r.prefix }

// StatePrefix returns the prefix of the keys in which the relay of this cluster stores its own
// state. Readers look there, too. It names the cluster, because several clusters may share an
// etcd.
func (r *Routes) StatePrefix() string {
	return path.Join(DefaultStatePrefix, r.cluster, r.prefix) + "/"
}

// Route returns the route of a key. The key must begin with Prefix.
func (r *Routes) Route(key string) Route {
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
	route.Subject = route.Stream + eventSubject + subjectToken(first)
	if second != "" {
		route.Subject += "." + subjectToken(second)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.known == nil || len(r.known) >= maxRoutes {
		r.known = map[string]Route{}
	}
	r.known[strings.Clone(resource)] = route
	return route
}

// PrefixRoute returns the route of all keys that begin with prefix. It returns false if they do
// not all share one route.
func (r *Routes) PrefixRoute(prefix string) (Route, bool) {
	below, ok := strings.CutPrefix(prefix, r.prefix)
	if !ok {
		return Route{}, false
	}
	if _, whole := resourceOf(below); !whole {
		return Route{}, false
	}
	return r.Route(prefix), true
}

// resourceOf returns the part of a key, without the prefix of the routes, that names its
// resource. A group, which contains a dot, precedes its resource, and "services" precedes its
// two kinds of objects; any other resource is one segment. It reports whole if a slash follows
// the resource.
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

// apiServices is the only resource that belongs to the aggregator. Other resources of its group
// can only be custom ones.
const apiServices = "apiregistration.k8s.io/apiservices"

// tierOf returns the tier that owns a resource. Groups that contain a dot belong to CRDs.
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

// Suffixes of the subjects of a stream; its name comes first. Every message of a stream reaches
// its readers, so progress and resets need no subject per resource.
const (
	eventSubject    = ".event."
	progressSubject = ".progress"
	resetSubject    = ".reset"
	// fenceSubject carries the progress message that each relay publishes first.
	fenceSubject = ".fence"
	allSubjects  = ".>"
	// progressRequestSubject does not belong to the stream. Readers publish to it to request
	// progress.
	progressRequestSubject = "-ask"
)

// Stream returns the name of a tier's stream.
func (r *Routes) Stream(tier Tier) string { return r.cluster + "-" + string(tier) }

// subjectToken encodes a segment of a key as one token of a NATS subject. Bytes that have a
// meaning in subjects, and bytes that are not printable ASCII, become %XX.
func subjectToken(segment string) string {
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
		return "%" // no segment encodes to this, and a token must not be empty
	}
	return b.String()
}
