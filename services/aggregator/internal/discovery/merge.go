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

// Priority is the place of a group-version in discovery: the highest Group of a
// group's versions places the group, Version places the version in it. Higher
// comes first.
type Priority struct{ Group, Version int }

// Source is what is known of one group-version from somebody who serves it.
type Source struct {
	schema.GroupVersion
	Discovery apidiscoveryv2.APIVersionDiscovery
}

// Knowledge is everything a merged document is made of. Merge does not change it.
type Input struct {
	// Own are the groups this tier serves itself; nobody can take their place.
	Own []apidiscoveryv2.APIGroupDiscovery
	// Remote is what is known of each remote APIService.
	Remote []Source
	// Next is what the next tier serves. A group-version that is also in Remote is
	// the remote's.
	Next []apidiscoveryv2.APIGroupDiscovery
	// NextDown marks all of Next as Stale.
	NextDown bool
	// Expected are group-versions that have a local APIService. Those that are not
	// in Next are listed, as Stale, while NextDown or while the next tier cannot
	// tell what stands behind it: they are probably still served.
	Expected []schema.GroupVersion
	// Priority places a group-version. Required.
	Priority func(schema.GroupVersion) Priority
}

// Merge makes one document. Its slices may share memory with k.
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

// ofLast is a group-version of the last tier, which serves it as long as it is
// there.
var lastTierGV = schema.GroupVersion{Group: "apiextensions.k8s.io", Version: "v1"}

// partial reports that Next lacks what the tiers behind the next one serve. A tier
// remembers what was behind it, and marks it Stale; but one that has been started
// while that is away has nothing to remember and leaves it out, and who takes such
// a list for the whole deletes a namespace without the custom resources in it.
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

// add lists a group-version unless somebody has already listed it.
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
