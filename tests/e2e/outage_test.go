package e2e

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"triune.dev/tests/cluster"
)

// TestOutage checks the table "dependency × down → result" of ARCHITECTURE.md, row by row:
// tier, then what it does without. Only the failed part is restarted, and after each row
// everything works again.
func TestOutage(t *testing.T) {
	if cluster.Topology(*target) == cluster.KubeAPIServer {
		t.Skip("kube-apiserver has no tiers")
	}
	s := newSite(t)

	t.Run("aggregator without its etcd", func(t *testing.T) {
		full(t)
		for what, take := range map[string]func(*testing.T, cluster.Tier){"down": s.kill, "frozen": s.freeze} {
			t.Run(what, func(t *testing.T) {
				take(t, cluster.EtcdOf(cluster.Aggregator))
				s.wantServerError(t, s.get(t, cluster.Aggregator, slow(ofAggregator)))
				s.wantServerError(t, s.create(t, cluster.Aggregator, ofAggregator, "no-"+what, ""))
				s.unready(t, cluster.Aggregator, "readyz", "etcd")
				s.unready(t, cluster.Aggregator, "livez", "etcd")
				s.wantOK(t, cluster.Aggregator, ofCore, ofExtensions, ofRemote)
				s.wantCreated(t, cluster.Aggregator, ofCore, "aggregator-etcd-"+what)
				s.wantCreated(t, cluster.Aggregator, ofExtensions, "aggregator-etcd-"+what)
			})
		}
	})

	t.Run("aggregator without core", func(t *testing.T) {
		s.kill(t, cluster.Core)
		for _, path := range []string{ofCore, ofExtensions, "/no/such/path"} {
			s.wantUnavailable(t, cluster.Core, s.get(t, cluster.Aggregator, path))
		}
		s.wantUnavailable(t, cluster.Core, s.create(t, cluster.Aggregator, ofCore, "lost", ""))
		t.Run("what it owns", func(t *testing.T) {
			s.wantOK(t, cluster.Aggregator, ofAggregator, ofRemote, "/version")
			s.wantCreated(t, cluster.Aggregator, ofAggregator, "without-core")
		})
		t.Run("discovery and OpenAPI", func(t *testing.T) {
			s.waitStale(t, cluster.Aggregator, "apps")
			s.waitStale(t, cluster.Aggregator, "outage.triune.dev")
			if groups := s.discovered(t, cluster.Aggregator); groups["remote.triune.dev"] != "Current" || groups["apiregistration.k8s.io"] != "Current" {
				t.Errorf("groups of servers that are there: %v", groups)
			}
			s.wantOK(t, cluster.Aggregator, "/apis", "/openapi/v3", "/openapi/v2")
		})
		t.Run("identities", func(t *testing.T) {
			for what, token := range map[string]string{"seen": s.seen, "of the file": "alice-token"} {
				if a := s.ask(t, call{to: cluster.Aggregator, path: ofAggregator, token: token}); a.code != http.StatusOK {
					t.Errorf("token %s: want 200, got %v", what, a)
				}
			}
			s.wantUnavailable(t, cluster.Core, s.ask(t, call{to: cluster.Aggregator, path: ofAggregator, token: s.unseen}))
			s.wantUnavailable(t, cluster.Core, s.ask(t, call{to: cluster.Aggregator, path: ofAggregator, token: "nonsense"}))
		})
		t.Run("rules that are not old yet", func(t *testing.T) {
			if a := s.create(t, cluster.Aggregator, ofAggregator, "of-alice", "alice-token"); a.code != http.StatusCreated {
				t.Errorf("want 201, got %v", a)
			}
			if a := s.create(t, cluster.Aggregator, ofAggregator, "of-bob", "bob-token"); a.code != http.StatusForbidden {
				t.Errorf("want 403, got %v", a)
			}
		})
		t.Run("extensions is reached directly", func(t *testing.T) {
			s.wantOK(t, cluster.Extensions, ofExtensions)
			s.wantCreated(t, cluster.Extensions, ofExtensions, "without-core")
		})
	})

	t.Run("aggregator without a core that answers", func(t *testing.T) {
		full(t)
		watch := s.watch(t, cluster.Aggregator, ofExtensions)
		s.freeze(t, cluster.Core)
		s.wantServerError(t, s.get(t, cluster.Aggregator, slow(ofCore)))
		s.wantOK(t, cluster.Aggregator, ofAggregator, ofRemote)
		s.wantServerError(t, s.create(t, cluster.Aggregator, ofCore, "frozen", ""))
		watch.wantEnd(t)
		s.wantUnavailable(t, cluster.Core, s.get(t, cluster.Aggregator, ofCore))
	})

	t.Run("aggregator and core without extensions", func(t *testing.T) {
		s.kill(t, cluster.Extensions)
		for _, tier := range []cluster.Tier{cluster.Aggregator, cluster.Core} {
			for _, path := range []string{ofExtensions, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", "/apis/no.such.group/v1/things"} {
				s.wantUnavailable(t, cluster.Extensions, s.get(t, tier, path))
			}
			s.wantUnavailable(t, cluster.Extensions, s.create(t, tier, ofExtensions, "lost", ""))
			s.wantOK(t, tier, ofCore, "/apis/apps/v1", "/api/v1", "/openapi/v3", "/openapi/v2", "/version")
			s.wantCreated(t, tier, ofCore, "without-extensions-"+string(tier))
			s.wantOK(t, tier, "/readyz?verbose")
		}
		s.wantOK(t, cluster.Aggregator, ofAggregator, ofAggregator+"/v1.outage.triune.dev", ofRemote)
		s.waitStale(t, cluster.Core, "outage.triune.dev")
		s.waitStale(t, cluster.Aggregator, "outage.triune.dev")
		if groups := s.discovered(t, cluster.Aggregator); groups["apps"] != "Current" || groups["remote.triune.dev"] != "Current" {
			t.Errorf("groups of servers that are there: %v", groups)
		}
		if a := s.get(t, cluster.Core, "/healthz/next-extensions"); a.code != http.StatusServiceUnavailable {
			t.Errorf("want 503, got %v", a)
		}
	})

	// TestSampleAPIServer checks how the APIService and discovery follow.
	t.Run("aggregator without an extension API server", func(t *testing.T) {
		s.remote.CloseClientConnections()
		address := s.remote.Listener.Addr().String()
		s.remote.Close()
		t.Cleanup(func() { s.reviveRemote(t, address); s.waitReady(t) })
		if a := s.get(t, cluster.Aggregator, ofRemote); a.code != http.StatusServiceUnavailable || a.took > promptly {
			t.Errorf("want 503 within %v, got %v", promptly, a)
		}
		s.wantOK(t, cluster.Aggregator, ofAggregator, ofCore, ofExtensions)
		if s.discovered(t, cluster.Aggregator)["remote.triune.dev"] == "" {
			t.Error("discovery has lost the group")
		}
	})

	t.Run("core without its etcd", func(t *testing.T) {
		full(t)
		for what, take := range map[string]func(*testing.T, cluster.Tier){"down": s.kill, "frozen": s.freeze} {
			watch := s.watch(t, cluster.Core, ofCore)
			t.Run(what, func(t *testing.T) {
				take(t, cluster.EtcdOf(cluster.Core))
				s.wantServerError(t, s.get(t, cluster.Aggregator, slow(ofCore)))
				s.wantServerError(t, s.get(t, cluster.Core, slow(ofCore)))
				s.wantServerError(t, s.create(t, cluster.Aggregator, ofCore, "lost", ""))
				s.unready(t, cluster.Core, "readyz", "etcd")
				s.unready(t, cluster.Core, "livez", "etcd")
				s.wantOK(t, cluster.Core, ofExtensions)
				s.wantOK(t, cluster.Aggregator, ofAggregator, ofExtensions, ofRemote)
				s.wantCreated(t, cluster.Aggregator, ofExtensions, "core-etcd-"+what)
			})
			s.wantCreated(t, cluster.Core, ofCore, "after-"+what)
			watch.wantEvent(t, "after-"+what)
		}
	})

	t.Run("core and extensions without the aggregator", func(t *testing.T) {
		s.kill(t, cluster.Aggregator)
		s.wantOK(t, cluster.Core, ofCore, ofExtensions, "/readyz")
		s.wantOK(t, cluster.Extensions, ofExtensions, "/readyz")
		s.wantCreated(t, cluster.Core, ofCore, "without-aggregator")
		s.wantCreated(t, cluster.Extensions, ofExtensions, "without-aggregator")
	})

	t.Run("extensions without its etcd", func(t *testing.T) {
		full(t)
		for what, take := range map[string]func(*testing.T, cluster.Tier){"down": s.kill, "frozen": s.freeze} {
			watch := s.watch(t, cluster.Extensions, ofExtensions)
			t.Run(what, func(t *testing.T) {
				take(t, cluster.EtcdOf(cluster.Extensions))
				s.wantServerError(t, s.get(t, cluster.Aggregator, slow(ofExtensions)))
				s.wantServerError(t, s.create(t, cluster.Extensions, ofExtensions, "no-"+what, ""))
				s.unready(t, cluster.Extensions, "readyz", "etcd")
				s.unready(t, cluster.Extensions, "livez", "etcd")
				s.wantOK(t, cluster.Aggregator, ofAggregator, ofCore, ofRemote)
				s.wantCreated(t, cluster.Aggregator, ofCore, "extensions-etcd-"+what)
			})
			s.wantCreated(t, cluster.Extensions, ofExtensions, "after-"+what)
			watch.wantEvent(t, "after-"+what)
		}
	})

	t.Run("extensions without core", func(t *testing.T) {
		s.kill(t, cluster.Core)
		s.wantOK(t, cluster.Extensions, ofExtensions, "/readyz")
		s.wantCreated(t, cluster.Extensions, ofExtensions, "extensions-without-core")
		reads := func(token string) answer {
			return s.ask(t, call{to: cluster.Extensions, path: ofExtensions, token: token})
		}
		// Its limits are half a second here. After that it does not accept tokens that core
		// has reviewed, and only grants reads by its rules.
		eventually(t, patience, func(context.Context) error {
			a := s.create(t, cluster.Extensions, ofExtensions, fmt.Sprint("alice-", time.Now().UnixNano()), "alice-token")
			if a.code != http.StatusForbidden || !strings.Contains(a.message, "--authorization-max-staleness") {
				return a
			}
			return nil
		})
		if a := reads("alice-token"); a.code != http.StatusOK {
			t.Errorf("a read by old rules: want 200, got %v", a)
		}
		eventually(t, patience, func(context.Context) error {
			if a := reads(s.seen); a.code != http.StatusServiceUnavailable {
				return a
			}
			return nil
		})
		s.wantUnavailable(t, cluster.Core, reads(s.seen))
		s.wantUnavailable(t, cluster.Core, reads(s.unseen))
	})

	t.Run("every tier without NATS", func(t *testing.T) {
		s.kill(t, cluster.NATS)
		s.waitReady(t)
		s.wantCreated(t, cluster.Aggregator, ofCore, "without-nats")
		s.wantCreated(t, cluster.Aggregator, ofExtensions, "without-nats")
	})

	t.Run("watches through a tier that is killed", func(t *testing.T) { s.testWatches(t) })
	t.Run("the order of the start", func(t *testing.T) { s.testStartOrder(t) })
}

// testWatches kills the tiers between a watch and its source. The watch ends, and an
// informer recovers without losing or repeating an event.
func (s *site) testWatches(t *testing.T) {
	config := rest.CopyConfig(restConfig(t, s.c))
	widgets := schema.GroupVersionResource{Group: "outage.triune.dev", Version: "v1", Resource: "widgets"}
	seen := startInformer(t, s.c, informerKind{name: "widgets", informer: func(_ *testing.T, _ *rest.Config, _ string, resync time.Duration) cache.SharedIndexInformer {
		return dynamicinformer.NewFilteredDynamicSharedInformerFactory(dynamic.NewForConfigOrDie(config), resync, "outage", nil).ForResource(widgets).Informer()
	}}, "outage")
	var want []string
	for _, tier := range []cluster.Tier{cluster.Core, cluster.Aggregator} {
		watch := s.watch(t, cluster.Aggregator, ofExtensions)
		s.c.Kill(tier, 0)
		watch.wantEnd(t)
		for i := range 3 {
			name := fmt.Sprintf("during-%s-%d", tier, i)
			s.wantCreated(t, cluster.Extensions, ofExtensions, name)
			want = append(want, name)
		}
		s.start(t, tier)
		s.waitReady(t)
		seen.until(t, "what was created without "+string(tier), func() bool {
			return !slices.ContainsFunc(want, func(name string) bool { return !slices.Contains(seen.added, name) })
		})
	}
	seen.mu.Lock()
	defer seen.mu.Unlock()
	if added := slices.Sorted(slices.Values(seen.added)); len(slices.Compact(slices.Clone(added))) != len(added) {
		t.Errorf("events were repeated: %v", added)
	}
	if len(seen.deleted) > 0 || len(seen.updated) > 0 {
		t.Errorf("events that never were: deleted %v, updated %v", seen.deleted, seen.updated)
	}
}

// testStartOrder starts every tier before those it needs. None exits: readyz names what the
// tier waits for, and livez succeeds, because a restart would not bring another tier back.
func (s *site) testStartOrder(t *testing.T) {
	stop := func() {
		for _, tier := range []cluster.Tier{cluster.Aggregator, cluster.Core, cluster.Extensions} {
			s.c.Kill(tier, 0)
		}
	}
	start := func(tier cluster.Tier) {
		t.Helper()
		if err := s.c.Process(tier, 0).Start(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
	}
	waitCheck := func(tier cluster.Tier, endpoint string) {
		t.Helper()
		eventually(t, patience, func(context.Context) error {
			if a := s.get(t, tier, "/"+endpoint+"?verbose"); a.code != http.StatusOK {
				return a
			}
			return nil
		})
	}
	waits := func(tier cluster.Tier) {
		t.Helper()
		waitCheck(tier, "livez")
		s.unready(t, tier, "readyz", "informer-sync")
		if !s.c.Process(tier, 0).Running() {
			t.Errorf("%s has exited", tier)
		}
	}

	t.Run("core last", func(t *testing.T) {
		stop()
		start(cluster.Aggregator)
		waits(cluster.Aggregator)
		s.wantUnavailable(t, cluster.Core, s.get(t, cluster.Aggregator, ofCore))
		s.wantOK(t, cluster.Aggregator, ofAggregator)
		start(cluster.Extensions)
		waits(cluster.Extensions)
		s.wantOK(t, cluster.Extensions, ofExtensions)
		// The rules of admission and of RBAC are not known yet.
		for tier, path := range map[cluster.Tier]string{cluster.Aggregator: ofAggregator, cluster.Extensions: ofExtensions} {
			s.wantServerError(t, s.create(t, tier, path, "early", ""))
			if a := s.ask(t, call{to: tier, path: path, token: "alice-token"}); a.code != http.StatusForbidden {
				t.Errorf("want 403, got %v", a)
			}
			s.wantUnavailable(t, cluster.Core, s.ask(t, call{to: tier, path: path, token: s.seen}))
		}
		start(cluster.Core)
		s.waitReady(t)
	})
	t.Run("extensions last", func(t *testing.T) {
		stop()
		start(cluster.Core)
		waitCheck(cluster.Core, "readyz")
		start(cluster.Aggregator)
		waitCheck(cluster.Aggregator, "readyz")
		for _, tier := range []cluster.Tier{cluster.Core, cluster.Aggregator} {
			s.wantUnavailable(t, cluster.Extensions, s.get(t, tier, ofExtensions))
			s.wantOK(t, tier, ofCore, "/openapi/v2", "/openapi/v3")
			s.wantCreated(t, tier, ofCore, "extensions-last-"+string(tier))
		}
		// Core cannot know a group that it has never been told of. Whoever needs all
		// objects of a namespace asks the aggregator, which knows the APIService.
		s.waitStale(t, cluster.Aggregator, "outage.triune.dev")
		s.wantOK(t, cluster.Aggregator, ofAggregator+"/v1.outage.triune.dev")
		start(cluster.Extensions)
		s.waitReady(t)
	})
}
