package etcdstore

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/features"
	"k8s.io/apiserver/pkg/storage"
	storagetesting "k8s.io/apiserver/pkg/storage/testing"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	featuregatetesting "k8s.io/component-base/featuregate/testing"
)

// TestConformance runs the tests of kube-apiserver's own storage, each with an etcd of its
// own: those of its watch cache against a cached Store, and those of its bare etcd storage
// against an uncached one. Both also run without a byte cache, to cover reads from etcd.
func TestConformance(t *testing.T) {
	type test struct {
		name string
		run  func(ctx context.Context, t *testing.T, f *fixture)
		// slow tests wait most of the time, and do so together.
		slow bool
	}
	// Both of kube-apiserver's storages pass these.
	objects := []test{
		{"create", func(ctx context.Context, t *testing.T, f *fixture) {
			storagetesting.RunTestCreate(ctx, t, f, f.checkStored)
		}, false},
		{"create existing", func(ctx context.Context, t *testing.T, f *fixture) {
			storagetesting.RunTestCreateWithKeyExist(ctx, t, f)
		}, false},
		{"get", func(ctx context.Context, t *testing.T, f *fixture) { storagetesting.RunTestGet(ctx, t, f) }, false},
		{"unconditional delete", func(ctx context.Context, t *testing.T, f *fixture) {
			storagetesting.RunTestUnconditionalDelete(ctx, t, f)
		}, false},
		{"conditional delete", func(ctx context.Context, t *testing.T, f *fixture) {
			storagetesting.RunTestConditionalDelete(ctx, t, f)
		}, false},
		{"delete with suggestion", func(ctx context.Context, t *testing.T, f *fixture) {
			storagetesting.RunTestDeleteWithSuggestion(ctx, t, f)
		}, false},
		{"delete with suggestion and conflict", func(ctx context.Context, t *testing.T, f *fixture) {
			storagetesting.RunTestDeleteWithSuggestionAndConflict(ctx, t, f)
		}, false},
		{"delete with conflict", func(ctx context.Context, t *testing.T, f *fixture) {
			storagetesting.RunTestDeleteWithConflict(ctx, t, f)
		}, false},
		{"delete with suggestion of a deleted object", func(ctx context.Context, t *testing.T, f *fixture) {
			storagetesting.RunTestDeleteWithSuggestionOfDeletedObject(ctx, t, f)
		}, false},
		{"validate deletion with suggestion", func(ctx context.Context, t *testing.T, f *fixture) {
			storagetesting.RunTestValidateDeletionWithSuggestion(ctx, t, f)
		}, false},
		{"validate deletion with only the suggestion valid", func(ctx context.Context, t *testing.T, f *fixture) {
			storagetesting.RunTestValidateDeletionWithOnlySuggestionValid(ctx, t, f)
		}, false},
		{"delete with precondition and suggestion", func(ctx context.Context, t *testing.T, f *fixture) {
			storagetesting.RunTestPreconditionalDeleteWithSuggestion(ctx, t, f)
		}, false},
		{"delete with precondition passed only by the suggestion", func(ctx context.Context, t *testing.T, f *fixture) {
			storagetesting.RunTestPreconditionalDeleteWithOnlySuggestionPass(ctx, t, f)
		}, false},
		{"list paging", func(ctx context.Context, t *testing.T, f *fixture) { storagetesting.RunTestListPaging(ctx, t, f) }, false},
		{"list non-recursive", func(ctx context.Context, t *testing.T, f *fixture) {
			storagetesting.RunTestGetListNonRecursive(ctx, t, f.increaseRevision, f)
		}, false},
		{"list recursive prefix", func(ctx context.Context, t *testing.T, f *fixture) {
			storagetesting.RunTestGetListRecursivePrefix(ctx, t, f)
		}, false},
		{"list in a namespace", func(ctx context.Context, t *testing.T, f *fixture) {
			storagetesting.RunTestNamespaceScopedList(ctx, t, f)
		}, false},
		{"list continuation", func(ctx context.Context, t *testing.T, f *fixture) {
			storagetesting.RunTestListContinuation(ctx, t, f, anyCalls)
		}, false},
		{"list rare object", func(ctx context.Context, t *testing.T, f *fixture) {
			storagetesting.RunTestListPaginationRareObject(ctx, t, f, anyCalls)
		}, false},
		{"list continuation with filter", func(ctx context.Context, t *testing.T, f *fixture) {
			storagetesting.RunTestListContinuationWithFilter(ctx, t, f, anyCalls)
		}, false},
		{"list resource version match", func(ctx context.Context, t *testing.T, f *fixture) {
			storagetesting.RunTestListResourceVersionMatch(ctx, t, f)
		}, false},
		{"guaranteed update", func(ctx context.Context, t *testing.T, f *fixture) {
			storagetesting.RunTestGuaranteedUpdate(ctx, t, f, f.checkStored)
		}, false},
		{"guaranteed update checks stored data", func(ctx context.Context, t *testing.T, f *fixture) {
			storagetesting.RunTestGuaranteedUpdateChecksStoredData(ctx, t, f)
		}, false},
		{"guaranteed update with conflict", func(ctx context.Context, t *testing.T, f *fixture) {
			storagetesting.RunTestGuaranteedUpdateWithConflict(ctx, t, f)
		}, false},
		{"guaranteed update with suggestion and conflict", func(ctx context.Context, t *testing.T, f *fixture) {
			storagetesting.RunTestGuaranteedUpdateWithSuggestionAndConflict(ctx, t, f)
		}, false},
		{"transformation failure", func(ctx context.Context, t *testing.T, f *fixture) {
			storagetesting.RunTestTransformationFailure(ctx, t, f)
		}, false},
	}
	watches := []test{
		{"create with ttl", func(ctx context.Context, t *testing.T, f *fixture) {
			storagetesting.RunTestCreateWithTTL(ctx, t, f)
		}, true},
		{"key schema", func(ctx context.Context, t *testing.T, f *fixture) { storagetesting.RunTestKeySchema(ctx, t, f) }, false},
		{"guaranteed update with ttl", func(ctx context.Context, t *testing.T, f *fixture) {
			storagetesting.RunTestGuaranteedUpdateWithTTL(ctx, t, f)
		}, true},
		{"watch", func(ctx context.Context, t *testing.T, f *fixture) { storagetesting.RunTestWatch(ctx, t, f) }, false},
		{"watch cluster-scoped", func(ctx context.Context, t *testing.T, f *fixture) {
			storagetesting.RunTestClusterScopedWatch(ctx, t, f)
		}, false},
		{"watch namespace-scoped", func(ctx context.Context, t *testing.T, f *fixture) {
			storagetesting.RunTestNamespaceScopedWatch(ctx, t, f)
		}, false},
		{"watch deletion", func(ctx context.Context, t *testing.T, f *fixture) {
			storagetesting.RunTestDeleteTriggerWatch(ctx, t, f)
		}, false},
		{"watch from non-zero", func(ctx context.Context, t *testing.T, f *fixture) {
			storagetesting.RunTestWatchFromNonZero(ctx, t, f)
		}, false},
		{"watch delayed delivery", func(ctx context.Context, t *testing.T, f *fixture) {
			storagetesting.RunTestDelayedWatchDelivery(ctx, t, f)
		}, false},
		{"watch context cancelled", func(ctx context.Context, t *testing.T, f *fixture) {
			storagetesting.RunTestWatchContextCancel(ctx, t, f)
		}, false},
		{"watch timeout", func(ctx context.Context, t *testing.T, f *fixture) {
			storagetesting.RunTestWatcherTimeout(ctx, t, f)
		}, false},
		{"watch deletion has its revision", func(ctx context.Context, t *testing.T, f *fixture) {
			storagetesting.RunTestWatchDeleteEventObjectHaveLatestRV(ctx, t, f)
		}, false},
		{"watch initialization signal", func(ctx context.Context, t *testing.T, f *fixture) {
			storagetesting.RunTestWatchInitializationSignal(ctx, t, f)
		}, false},
		{"watch without sendInitialEvents", func(ctx context.Context, t *testing.T, f *fixture) {
			storagetesting.RunSendInitialEventsBackwardCompatibility(ctx, t, f)
		}, false},
		{"watch semantics", func(ctx context.Context, t *testing.T, f *fixture) {
			storagetesting.RunWatchSemantics(ctx, t, settled{f})
		}, false},
		{"watch initial events", func(ctx context.Context, t *testing.T, f *fixture) {
			storagetesting.RunWatchSemanticInitialEventsExtended(ctx, t, settled{f})
		}, false},
		{"watch one object", func(ctx context.Context, t *testing.T, f *fixture) {
			storagetesting.RunWatchListMatchSingle(ctx, t, settled{f})
		}, false},
	}
	// The sizes are those of the bytes read: encrypted in etcd, decrypted in a cache.
	stats := test{"stats", func(ctx context.Context, t *testing.T, f *fixture) {
		storagetesting.RunTestStats(ctx, t, f, f.codec, f.transformer, true)
	}, false}
	// These expect an error once history is compacted or the keys of the encryption have
	// changed. A byte cache from before would still have the answers, so it is reloaded.
	forgetful := []test{
		{"watch from zero", func(ctx context.Context, t *testing.T, f *fixture) {
			storagetesting.RunTestWatchFromZero(ctx, t, f, func(ctx context.Context, t *testing.T, version string) {
				f.compact(ctx, t, version)
				f.reload(t)
			})
		}, false},
		{"watch error", func(ctx context.Context, t *testing.T, f *fixture) { storagetesting.RunTestWatchError(ctx, t, f) }, false},
		{"watch error ends the watch", func(ctx context.Context, t *testing.T, f *fixture) {
			storagetesting.RunWatchErrorIsBlockingFurtherEvents(ctx, t, f)
		}, false},
	}
	watchCache := []test{
		{"list", func(ctx context.Context, t *testing.T, f *fixture) {
			storagetesting.RunTestList(ctx, t, f, f.compact, true, storagetesting.NewKubernetesRecorder(nil))
		}, false},
	}
	bookmarks := []test{
		{"bookmarks", func(ctx context.Context, t *testing.T, f *fixture) {
			storagetesting.RunTestWatchDispatchBookmarkEvents(ctx, t, f, true)
		}, true},
		{"bookmarks with correct versions", func(ctx context.Context, t *testing.T, f *fixture) {
			storagetesting.RunTestOptionalWatchBookmarksWithCorrectResourceVersion(ctx, t, f)
		}, true},
	}
	bare := []test{
		// It pages with resourceVersion=0, whose limit a watch cache ignores.
		{"list inconsistent continuation", func(ctx context.Context, t *testing.T, f *fixture) {
			storagetesting.RunTestListInconsistentContinuation(ctx, t, f, f.compact)
		}, false},
		{"list", func(ctx context.Context, t *testing.T, f *fixture) {
			storagetesting.RunTestList(ctx, t, f, f.compact, false, storagetesting.NewKubernetesRecorder(nil))
		}, false},
		{"consistent list", func(ctx context.Context, t *testing.T, f *fixture) {
			storagetesting.RunTestConsistentList(ctx, t, f, f.increaseRevision, false, true, false)
		}, false},
	}
	bareWatches := []test{
		{"no bookmarks", func(ctx context.Context, t *testing.T, f *fixture) {
			storagetesting.RunTestWatchDispatchBookmarkEvents(ctx, t, f, false)
		}, true},
		{"watch with unsafe delete", func(ctx context.Context, t *testing.T, f *fixture) {
			featuregatetesting.SetFeatureGateDuringTest(t, utilfeature.DefaultFeatureGate, features.AllowUnsafeMalformedObjectDeletion, true)
			f.reportCorrupt = true
			storagetesting.RunTestWatchWithUnsafeDelete(ctx, t, f)
		}, false},
	}
	run := func(t *testing.T, tests []test, change func(t *testing.T, c *Config)) {
		for _, tc := range tests {
			t.Run(tc.name, func(t *testing.T) {
				if tc.slow {
					t.Parallel()
				}
				f := newFixture(t, func(c *Config) { change(t, c) })
				f.freshTimeout = 300 * time.Millisecond
				if f.watches != nil {
					f.watches.FreshTimeout = f.freshTimeout
				}
				// Not deferred: some of them leave parallel subtests behind.
				ctx, cancel := context.WithCancel(context.Background())
				t.Cleanup(cancel)
				tc.run(ctx, t, f)
			})
		}
	}
	uncached := func(_ *testing.T, c *Config) { c.Uncached = true }
	t.Run("as with a watch cache", func(t *testing.T) {
		run(t, slices.Concat(watchCache, objects, watches, bookmarks, forgetful), func(t *testing.T, c *Config) { withCache(t)(c) })
	})
	t.Run("as without", func(t *testing.T) {
		run(t, slices.Concat(objects, watches, bareWatches, forgetful), func(t *testing.T, c *Config) {
			uncached(t, c)
			withCache(t)(c)
		})
	})
	t.Run("as with a watch cache, from etcd", func(t *testing.T) {
		run(t, slices.Concat(watchCache, objects, []test{stats}), func(*testing.T, *Config) {})
	})
	t.Run("as without, from etcd", func(t *testing.T) {
		run(t, slices.Concat(bare, objects, []test{stats}), uncached)
	})
}

// settled is for tests that allow events 150 ms to arrive, too little on a busy machine:
// Create returns when another watch, opened after those of the test, has seen the object.
type settled struct{ *fixture }

func (s settled) Create(ctx context.Context, key string, obj, out runtime.Object, ttl uint64) error {
	if err := s.fixture.Create(ctx, key, obj, out, ttl); err != nil {
		return err
	}
	version, err := s.versioner.ObjectResourceVersion(out)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	w, err := s.Watch(ctx, key, storage.ListOptions{ResourceVersion: strconv.FormatUint(version-1, 10), Predicate: storage.Everything})
	if err != nil {
		return err
	}
	<-w.ResultChan()
	return nil
}

func anyCalls(*testing.T, uint64, uint64) {}

// checkStored is a storagetesting.KeyValidation: fields that only the API shows are not
// stored.
func (f *fixture) checkStored(ctx context.Context, t *testing.T, key string) {
	t.Helper()
	resp, err := f.etcd.Get(ctx, "/registry"+strings.TrimPrefix(key, "/registry"))
	if err != nil || len(resp.Kvs) != 1 {
		t.Fatalf("get %s: %v, %d keys", key, err, len(resp.Kvs))
	}
	obj, err := runtime.Decode(f.codec, resp.Kvs[0].Value[len(sealPrefix):])
	if err != nil {
		t.Fatalf("decode what is stored at %s: %v", key, err)
	}
	if pod := obj.(*example.Pod); pod.ResourceVersion != "" || pod.SelfLink != "" {
		t.Errorf("stored with resourceVersion %q and selfLink %q", pod.ResourceVersion, pod.SelfLink)
	}
}

// compact is a storagetesting.Compaction. The first turn may only learn of the compaction
// before; then a second one compacts.
func (f *fixture) compact(ctx context.Context, t *testing.T, version string) {
	t.Helper()
	rev, err := storage.APIObjectVersioner{}.ParseResourceVersion(version)
	if err != nil {
		t.Fatal(err)
	}
	r := round{revision: int64(rev)}
	for range 2 {
		next, compacted, err := try(ctx, f.etcd, r)
		if err != nil {
			t.Fatalf("compact at %s: %v", version, err)
		}
		if compacted == int64(rev) {
			return
		}
		r.version = next.version
	}
	t.Fatalf("not compacted at %s", version)
}

// increaseRevision is a storagetesting.IncreaseRVFunc.
func (f *fixture) increaseRevision(ctx context.Context, t *testing.T) int64 {
	t.Helper()
	resp, err := f.etcd.Put(ctx, "increase", "ok")
	if err != nil {
		t.Fatal(err)
	}
	return resp.Header.Revision
}
