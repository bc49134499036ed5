package discovery

import (
	"cmp"
	"slices"
	"strings"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/version"
)

// Priority is the priority of a group-version in discovery; higher ones come first. A group has
// the highest Group of its versions, and Version orders the versions within it.
type Priority struct{ Group, Version int }

// Source is the discovery of one group-version.
type Source struct {
	schema.GroupVersion
	Discovery apidiscoveryv2.APIVersionDiscovery
}

// Input is the input of [Merge], which does not modify it.
type Input struct {
	// Own are the groups of this tier. They take precedence over all others.
	Own []apidiscoveryv2.APIGroupDiscovery
	// Remote are the group-versions of remote APIServices.
	Remote []Source
	// Next are the groups of the next tier. Remote takes precedence.
	Next []apidiscoveryv2.APIGroupDiscovery
	// NextDown marks all of Next as Stale.
	NextDown bool
	// Expected are the group-versions of local APIServices. If Next lacks them, they are listed
	// as Stale while NextDown is set or the next tier does not know the tiers behind it:
	// probably they are still served.
	Expected []schema.GroupVersion
	// Priority returns the priority of a group-version. Required.
	Priority func(schema.GroupVersion) Priority
}

// Merge returns the merged document. It may share memory with k.
func Merge(k Input) []apidiscoveryv2.APIGroupDiscovery {
	m := merger{priority: k.Priority, index: map[string]int{}, seen: map[schema.GroupVersion]bool{}}
	for _, group := range k.Own {
		m.addGroup(group, false)
	}
	for _, source := range k.Remote {
		m.add(metav1.ObjectMeta{Name: source.Group}, source.Group, source.Discovery)
	}
	for _, group := range k.Next {
		m.addGroup(group, k.NextDown)
	}
	if k.NextDown || k.isPartial() {
		for _, gv := range k.Expected {
			m.add(metav1.ObjectMeta{Name: gv.Group}, gv.Group, apidiscoveryv2.APIVersionDiscovery{
				Version:   gv.Version,
				Freshness: apidiscoveryv2.DiscoveryFreshnessStale,
			})
		}
	}
	m.sort()
	return m.groups
}

// lastTierGV is a group-version that the last tier always serves.
var lastTierGV = schema.GroupVersion{Group: "apiextensions.k8s.io", Version: "v1"}

// isPartial reports whether Next lacks the group-versions of tiers behind the next one. A tier
// remembers them and marks them Stale while those tiers are down; but after a restart it cannot
// list them. A client that takes such a list for complete would delete a namespace without its
// custom resources.
func (k Input) isPartial() bool {
	if !slices.Contains(k.Expected, lastTierGV) {
		return false
	}
	for _, group := range k.Next {
		for _, v := range group.Versions {
			if group.Name == lastTierGV.Group && v.Version == lastTierGV.Version {
				return v.Freshness == apidiscoveryv2.DiscoveryFreshnessStale
			}
		}
	}
	return true
}

type merger struct {
	priority func(schema.GroupVersion) Priority
	groups   []apidiscoveryv2.APIGroupDiscovery
	index    map[string]int // group name → index in groups
	seen     map[schema.GroupVersion]bool
}

func (m *merger) addGroup(group apidiscoveryv2.APIGroupDiscovery, stale bool) {
	for _, v := range group.Versions {
		if stale {
			v.Freshness = apidiscoveryv2.DiscoveryFreshnessStale
		}
		m.add(group.ObjectMeta, group.Name, v)
	}
}

// add adds a group-version unless it is already listed.
func (m *merger) add(meta metav1.ObjectMeta, group string, v apidiscoveryv2.APIVersionDiscovery) {
	gv := schema.GroupVersion{Group: group, Version: v.Version}
	if m.seen[gv] {
		return
	}
	m.seen[gv] = true
	i, ok := m.index[group]
	if !ok {
		i = len(m.groups)
		m.index[group] = i
		m.groups = append(m.groups, apidiscoveryv2.APIGroupDiscovery{ObjectMeta: meta})
	}
	m.groups[i].Versions = append(m.groups[i].Versions, v)
}

func (m *merger) sort() {
	place := make(map[string]int, len(m.groups))
	for i := range m.groups {
		group := &m.groups[i]
		slices.SortStableFunc(group.Versions, func(a, b apidiscoveryv2.APIVersionDiscovery) int {
			byPriority := cmp.Compare(m.priorityOf(group.Name, b).Version, m.priorityOf(group.Name, a).Version)
			return cmp.Or(byPriority, version.CompareKubeAwareVersionStrings(b.Version, a.Version))
		})
		for _, v := range group.Versions {
			place[group.Name] = max(place[group.Name], m.priorityOf(group.Name, v).Group)
		}
	}
	slices.SortStableFunc(m.groups, func(a, b apidiscoveryv2.APIGroupDiscovery) int {
		return cmp.Or(cmp.Compare(place[b.Name], place[a.Name]), strings.Compare(a.Name, b.Name))
	})
}

func (m *merger) priorityOf(group string, v apidiscoveryv2.APIVersionDiscovery) Priority {
	return m.priority(schema.GroupVersion{Group: group, Version: v.Version})
}
