package eventlog

import (
	"slices"
	"strings"

	"triune.dev/shared/storage/kv"
)

// builtInResources are the first segments of the keys of built-in resources. Most are the names
// of resources. The storage factory of k8s.io/kubernetes/pkg/kubeapiserver names some
// differently (controllers, ingress, minions, services), and kube-apiserver also writes
// masterleases, peerserverleases and ranges. The group of a custom resource contains a dot, so
// it cannot be among them. TestKeysOfCore in services/core compares the list with the resources
// that core serves.
var builtInResources = strings.Fields(`
	certificatesigningrequests clusterrolebindings clusterroles clustertrustbundles configmaps
	controllerrevisions controllers cronjobs csidrivers csinodes csistoragecapacities daemonsets
	deployments deviceclasses devicetaintrules endpointslices events flowschemas
	horizontalpodautoscalers ingress ingressclasses ipaddresses jobs leasecandidates leases
	limitranges masterleases minions mutatingadmissionpolicies mutatingadmissionpolicybindings
	mutatingwebhookconfigurations namespaces networkpolicies peerserverleases
	persistentvolumeclaims persistentvolumes podcertificaterequests poddisruptionbudgets podgroups
	pods podtemplates priorityclasses prioritylevelconfigurations ranges replicasets
	resourceclaims resourceclaimtemplates resourcepoolstatusrequests resourcequotas
	resourceslices rolebindings roles runtimeclasses secrets serviceaccounts servicecidrs services
	statefulsets storageclasses storageversionmigrations storageversions
	validatingadmissionpolicies validatingadmissionpolicybindings
	validatingwebhookconfigurations volumeattachments volumeattributesclasses workloads
`)

// Ranges returns the ranges of keys that a tier owns, in order. The ranges of different tiers
// do not overlap. Core owns the built-in resources, the aggregator its APIServices, and
// extensions everything else below the prefix, because a CRD may name any group. The roles of
// etcd and the watches of a reader are derived from these ranges.
func (r *Routes) Ranges(tier Tier) []kv.KeyRange {
	aggregator := []kv.KeyRange{kv.PrefixKeys(r.prefix + apiServices + "/")}
	var core []kv.KeyRange
	for _, segment := range builtInResources {
		core = append(core, kv.PrefixKeys(r.prefix+segment+"/"))
	}
	switch tier {
	case Aggregator:
		return aggregator
	case Core:
		return core
	case Extensions:
		return subtract(kv.PrefixKeys(r.prefix), append(core, aggregator...))
	}
	return nil
}

// subtract returns the parts of a range that remain without others, which lie within it.
func subtract(all kv.KeyRange, others []kv.KeyRange) []kv.KeyRange {
	slices.SortFunc(others, func(a, b kv.KeyRange) int { return strings.Compare(a.Key, b.Key) })
	var remaining []kv.KeyRange
	for _, other := range others {
		if all.Key < other.Key {
			remaining = append(remaining, kv.KeyRange{Key: all.Key, End: other.Key})
		}
		all.Key = other.End
	}
	return append(remaining, all)
}

// watchedRanges returns the ranges that a reader watches in etcd: the whole prefix for core,
// which may read everything, and if tier is empty; otherwise the ranges of the tier.
func (r *Routes) watchedRanges(tier Tier) []kv.KeyRange {
	if tier == "" || tier == Core {
		return []kv.KeyRange{kv.PrefixKeys(r.prefix)}
	}
	return r.Ranges(tier)
}
