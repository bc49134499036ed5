package command

import (
	"maps"
	"slices"

	"github.com/spf13/pflag"
	"k8s.io/apiserver/pkg/features"
	"k8s.io/component-base/featuregate"
	"k8s.io/klog/v2"
)

// FlagsWithoutEffect are the flags of kube-apiserver that every program which has them accepts,
// so that a command line of kube-apiserver works, and that change nothing, each with the reason.
var FlagsWithoutEffect = map[string]string{
	"peer-ca-file":             "no request is passed to another API server of the cluster",
	"watch-cache":              "objects are cached as stored bytes, which cost little",
	"watch-cache-sizes":        "objects are cached as stored bytes, and the window of events is bounded by --cache-log-bytes",
	"default-watch-cache-size": "the window of events is bounded by --cache-log-bytes",
}

const noWatchCache = "there is no watch cache"

// GatesWithoutEffect are the feature gates of kube-apiserver that change nothing, each with the
// reason.
var GatesWithoutEffect = map[featuregate.Feature]string{
	features.APIServingWithRoutine:             "the stack of a watch is small without it",
	features.BtreeWatchCache:                   noWatchCache,
	features.ConcurrentWatchObjectDecode:       "events are not decoded",
	features.ConsistentListFromCache:           "consistent LISTs are always answered from the cache",
	features.DetectCacheInconsistency:          noWatchCache,
	features.ListFromCacheSnapshot:             "pages of LISTs are always answered from snapshots of the cache",
	features.ResilientWatchCacheInitialization: noWatchCache,
	features.SeparateCacheWatchRPC:             "there is one watch of etcd for everybody",
	features.StorageVersionAPI:                 "all replicas write the storage versions that --emulated-version says",
}

// logWithoutEffect logs each flag that was given, and each gate that was switched, although it
// has no effect.
func logWithoutEffect(flags *pflag.FlagSet, specific map[string]string, gates featuregate.MutableFeatureGate) {
	all := maps.Clone(FlagsWithoutEffect)
	maps.Copy(all, specific)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if flag := flags.Lookup(name); flag != nil && flag.Changed {
			klog.InfoS("a flag has no effect", "flag", "--"+name, "reason", all[name])
		}
	}
	known := gates.GetAll()
	for _, gate := range slices.Sorted(maps.Keys(GatesWithoutEffect)) {
		if gates.Enabled(gate) != known[gate].Default {
			klog.InfoS("a feature gate has no effect", "gate", gate, "reason", GatesWithoutEffect[gate])
		}
	}
}
