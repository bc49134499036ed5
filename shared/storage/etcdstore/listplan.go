package etcdstore

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/storage"
)

// listPlan describes the reads of a LIST.
type listPlan struct {
	// exact is the revision to read at; 0 means the newest.
	exact int64
	// atLeast is the revision the newest state must have reached.
	atLeast int64
	// start is the etcd key to begin with; empty means the first.
	start string
	// limit is the number of objects after which to stop; 0 means none.
	limit int64
	// anyMember: the answer of any etcd member will do that has reached atLeast.
	anyMember bool
	// wait for a revision that does not exist yet, instead of refusing at once.
	wait bool
}

// planList applies the semantics of resourceVersion and resourceVersionMatch
// (API concepts, "Resource versions": semantics for get and list) to a LIST
// below the etcd prefix. Errors are the client's.
func planList(prefix string, versioner storage.Versioner, opts storage.ListOptions, uncached bool) (listPlan, error) {
	exact, start, err := storage.ValidateListOptions(prefix, versioner, opts)
	if err != nil {
		return listPlan{}, err
	}
	// ValidateListOptions has parsed it, except next to a continue token, where
	// nothing but "" and "0" pass.
	version, err := versioner.ParseResourceVersion(opts.ResourceVersion)
	if err != nil {
		return listPlan{}, invalidResourceVersion(err)
	}
	p := listPlan{exact: exact, start: start, limit: opts.Predicate.Limit}
	if exact == 0 {
		p.atLeast = int64(version)
	}
	p.anyMember = opts.ResourceVersion != "" && exact == 0 && start == ""
	if opts.ResourceVersion == "0" && !uncached {
		// The watch cache answers such a LIST whole, limit or not.
		p.limit = 0
	}
	p.wait = !uncached && (opts.Recursive || !bypassesCache(opts))
	return p, nil
}

// bypassesCache reports whether kube-apiserver sends a LIST of a single object to etcd
// although the resource has a watch cache, as it does at an exact revision.
func bypassesCache(opts storage.ListOptions) bool {
	switch opts.ResourceVersionMatch {
	case metav1.ResourceVersionMatchExact:
		return true
	case "":
		return opts.Predicate.Limit > 0 && opts.ResourceVersion != "" && opts.ResourceVersion != "0"
	default:
		return false
	}
}
