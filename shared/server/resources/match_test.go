package resources

import "testing"

// kinds is a set of resources; true means namespaced.
type kinds map[string]bool

func (k kinds) scope(resource string) (namespaced, found bool) {
	namespaced, found = k[resource]
	return namespaced, found
}

func TestMatchFollowsTheGrammarOfTheAPIConventions(t *testing.T) {
	known := kinds{
		"namespaces": false, "namespaces/status": false, "namespaces/finalize": false,
		"nodes": false, "nodes/proxy": false,
		"pods": true, "pods/status": true, "pods/proxy": true,
		"status": true, // a namespaced resource with the name of a subresource of namespaces
	}
	at := func(resource string, level Level) Target { return Target{Resource: resource, Level: level} }
	watched := func(resource string, level Level) Target {
		return Target{Resource: resource, Level: level, Watch: true}
	}
	none := Target{}
	tests := map[string]struct {
		path string
		want Target // zero if there is no such path
	}{
		"cluster collection":                       {"nodes", at("nodes", Collection)},
		"cluster item":                             {"nodes/n", at("nodes", Item)},
		"cluster subresource":                      {"nodes/n/proxy", at("nodes/proxy", Item)},
		"path below a cluster subresource":         {"nodes/n/proxy/a/b", at("nodes/proxy", ItemPath)},
		"namespaced collection":                    {"namespaces/x/pods", at("pods", Collection)},
		"namespaced item":                          {"namespaces/x/pods/p", at("pods", Item)},
		"namespaced subresource":                   {"namespaces/x/pods/p/status", at("pods/status", Item)},
		"path below a namespaced subresource":      {"namespaces/x/pods/p/proxy/a", at("pods/proxy", ItemPath)},
		"all namespaces":                           {"pods", at("pods", AllNamespaces)},
		"namespaces themselves":                    {"namespaces", at("namespaces", Collection)},
		"one namespace":                            {"namespaces/x", at("namespaces", Item)},
		"subresource of a namespace":               {"namespaces/x/finalize", at("namespaces/finalize", Item)},
		"namespaced before subresource":            {"namespaces/x/status", at("status", Collection)},
		"namespace with the name of a resource":    {"namespaces/pods", at("namespaces", Item)},
		"item with the name of a subresource":      {"namespaces/x/pods/status", at("pods", Item)},
		"item named watch":                         {"nodes/watch", at("nodes", Item)},
		"leading slash":                            {"/nodes/n", at("nodes", Item)},
		"trailing slash":                           {"nodes/n/", at("nodes", Item)},
		"watch on a collection":                    {"watch/nodes", watched("nodes", Collection)},
		"watch on all namespaces":                  {"watch/pods", watched("pods", AllNamespaces)},
		"watch on a namespaced collection":         {"watch/namespaces/x/pods", watched("pods", Collection)},
		"watch on an item":                         {"watch/namespaces/x/pods/p", watched("pods", Item)},
		"watch on namespaces":                      {"watch/namespaces", watched("namespaces", Collection)},
		"watch alone":                              {"watch", none},
		"watch twice":                              {"watch/watch/pods", none},
		"nothing":                                  {"", none},
		"unknown resource":                         {"gizmos", none},
		"unknown namespaced resource":              {"namespaces/x/gizmos", none},
		"unknown subresource":                      {"namespaces/x/pods/p/gizmos", none},
		"path below an unknown subresource":        {"nodes/n/gizmos/a", none},
		"namespaced item without its namespace":    {"pods/p", none},
		"namespaced subresource without namespace": {"pods/p/status", none},
		"cluster resource in a namespace":          {"namespaces/x/nodes", none},
		"empty namespace":                          {"namespaces//pods/p", at("pods", Item)},
		"empty name":                               {"nodes//proxy", at("nodes/proxy", Item)},
		"empty segment below an item":              {"nodes/n/proxy//a", at("nodes/proxy", ItemPath)},
		"empty segment before the resource":        {"//nodes", none},
		"empty resource in a namespace":            {"namespaces/x//pods", none},
		"many slashes at the end":                  {"nodes/n///", at("nodes", Item)},
		"case counts":                              {"Pods", none},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			got, ok := Match(known, test.path)
			if ok != (test.want != none) || (ok && got != test.want) {
				t.Errorf("Match(%q) = %+v, %v, want %+v", test.path, got, ok, test.want)
			}
		})
	}
}
