package eventlog

import (
	"slices"
	"strings"

	"triune.dev/shared/etcdstore/kv"
)

// builtIn are the first segments of the keys of built-in resources: their names, but
// for those that the storage factory of k8s.io/kubernetes/pkg/kubeapiserver calls
// otherwise (controllers, ingress, minions, services), and what kube-apiserver writes
// besides (masterleases, peerserverleases, ranges). A group of custom resources has a
// dot, and so is none of them. TestKeysOfCore in services/core compares them with what
// there is.
var builtIn = strings.Fields(`
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

// Ranges returns the ranges of keys that are a tier's, in order, which no other tier's
// overlap: for core those of the built-in resources, for the aggregator those of its
// APIServices, and for extensions all others below the prefix, because anybody may name
// a group. The roles of etcd are made of them, and so are the watches of a reader.
func (r *Routes) Ranges(tier Tier) []kv.KeyRange {
	aggregator := []kv.KeyRange{kv.PrefixKeys(r.prefix + apiServices + "/")}
	var core []kv.KeyRange
	for _, segment := range builtIn {
		core = append(core, kv.PrefixKeys(r.prefix+segment+"/"))
	}
	switch tier {
	case Aggregator:
		return aggregator
	case Core:
		return core
	case Extensions:
		return between(kv.PrefixKeys(r.prefix), append(core, aggregator...))
	}
	return nil
}

// between returns what is left of a range without others that are in it.
func between(all kv.KeyRange, others []kv.KeyRange) []kv.KeyRange {
	slices.SortFunc(others, func(a, b kv.KeyRange) int { return strings.Compare(a.Key, b.Key) })
	var left []kv.KeyRange
	for _, other := range others {
		if all.Key < other.Key {
			left = append(left, kv.KeyRange{Key: all.Key, End: other.Key})
		}
		all.Key = other.End
	}
	return append(left, all)
}

// watched returns the ranges that a reader watches: those of its tier, or the whole
// prefix for core, which may read everything, and where no tier is named.
func (r *Routes) watched(tier Tier) []kv.KeyRange {
	if tier == "" || tier == Core {
		return []kv.KeyRange{kv.PrefixKeys(r.prefix)}
	}
	return r.Ranges(tier)
}
