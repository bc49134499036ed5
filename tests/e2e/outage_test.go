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

// TestOutage is the table "dependency × down → result" of ARCHITECTURE.md, row by
// row: tier, then what it does without. Nothing but what was taken away is
// restarted, and after each row everything works again.
func TestOutage(t *testing.T) {
	if cluster.Topology(*target) == cluster.KubeAPIServer {
		t.Skip("kube-apiserver has no tiers")
	}
	s := newSite(t)

	t.Run("aggregator without its etcd", func(t *testing.T) {
		full(t)
		for what, take := range map[string]func(*testing.T, cluster.Tier){"down": s.down, "frozen": s.frozen} {
			t.Run(what, func(t *testing.T) {
				take(t, cluster.EtcdOf(cluster.Aggregator))
				s.fails(t, s.get(t, cluster.Aggregator, slow(ofAggregator)))
				s.fails(t, s.create(t, cluster.Aggregator, ofAggregator, "no-"+what, ""))
				s.unready(t, cluster.Aggregator, "readyz", "etcd")
				s.unready(t, cluster.Aggregator, "livez", "etcd")
				s.works(t, cluster.Aggregator, ofCore, ofExtensions, ofRemote)
				s.creates(t, cluster.Aggregator, ofCore, "aggregator-etcd-"+what)
				s.creates(t, cluster.Aggregator, ofExtensions, "aggregator-etcd-"+what)
			})
		}
	})

	t.Run("aggregator without core", func(t *testing.T) {
		s.down(t, cluster.Core)
		for _, path := range []string{ofCore, ofExtensions, "/no/such/path"} {
			s.away(t, cluster.Core, s.get(t, cluster.Aggregator, path))
		}
		s.away(t, cluster.Core, s.create(t, cluster.Aggregator, ofCore, "lost", ""))
		t.Run("what it owns", func(t *testing.T) {
			s.works(t, cluster.Aggregator, ofAggregator, ofRemote, "/version")
			s.creates(t, cluster.Aggregator, ofAggregator, "without-core")
		})
		t.Run("discovery and OpenAPI", func(t *testing.T) {
			s.becomesStale(t, cluster.Aggregator, "apps")
			s.becomesStale(t, cluster.Aggregator, "outage.triune.dev")
			if groups := s.discovered(t, cluster.Aggregator); groups["remote.triune.dev"] != "Current" || groups["apiregistration.k8s.io"] != "Current" {
				t.Errorf("groups of servers that are there: %v", groups)
			}
			s.works(t, cluster.Aggregator, "/apis", "/openapi/v3", "/openapi/v2")
		})
		t.Run("identities", func(t *testing.T) {
			for what, token := range map[string]string{"seen": s.seen, "of the file": "alice-token"} {
				if a := s.ask(t, call{to: cluster.Aggregator, path: ofAggregator, token: token}); a.code != http.StatusOK {
					t.Errorf("token %s: want 200, got %v", what, a)
				}
			}
			s.away(t, cluster.Core, s.ask(t, call{to: cluster.Aggregator, path: ofAggregator, token: s.unseen}))
			s.away(t, cluster.Core, s.ask(t, call{to: cluster.Aggregator, path: ofAggregator, token: "nonsense"}))
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
			s.works(t, cluster.Extensions, ofExtensions)
			s.creates(t, cluster.Extensions, ofExtensions, "without-core")
		})
	})

	t.Run("aggregator without a core that answers", func(t *testing.T) {
		full(t)
		watch := s.watch(t, cluster.Aggregator, ofExtensions)
		s.frozen(t, cluster.Core)
		s.fails(t, s.get(t, cluster.Aggregator, slow(ofCore)))
		s.works(t, cluster.Aggregator, ofAggregator, ofRemote)
		s.fails(t, s.create(t, cluster.Aggregator, ofCore, "frozen", ""))
		watch.ends(t)
		s.away(t, cluster.Core, s.get(t, cluster.Aggregator, ofCore))
	})

	t.Run("aggregator and core without extensions", func(t *testing.T) {
		s.down(t, cluster.Extensions)
		for _, tier := range []cluster.Tier{cluster.Aggregator, cluster.Core} {
			for _, path := range []string{ofExtensions, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", "/apis/no.such.group/v1/things"} {
				s.away(t, cluster.Extensions, s.get(t, tier, path))
			}
			s.away(t, cluster.Extensions, s.create(t, tier, ofExtensions, "lost", ""))
			s.works(t, tier, ofCore, "/apis/apps/v1", "/api/v1", "/openapi/v3", "/openapi/v2", "/version")
			s.creates(t, tier, ofCore, "without-extensions-"+string(tier))
			s.works(t, tier, "/readyz?verbose")
		}
		s.works(t, cluster.Aggregator, ofAggregator, ofAggregator+"/v1.outage.triune.dev", ofRemote)
		s.becomesStale(t, cluster.Core, "outage.triune.dev")
		s.becomesStale(t, cluster.Aggregator, "outage.triune.dev")
		if groups := s.discovered(t, cluster.Aggregator); groups["apps"] != "Current" || groups["remote.triune.dev"] != "Current" {
			t.Errorf("groups of servers that are there: %v", groups)
		}
		if a := s.get(t, cluster.Core, "/healthz/next-extensions"); a.code != http.StatusServiceUnavailable {
			t.Errorf("want 503, got %v", a)
		}
	})

	// How its APIService and discovery follow is a matter of TestSampleAPIServer.
	t.Run("aggregator without an extension API server", func(t *testing.T) {
		s.remote.CloseClientConnections()
		address := s.remote.Listener.Addr().String()
		s.remote.Close()
		t.Cleanup(func() { s.reviveRemote(t, address); s.whole(t) })
		if a := s.get(t, cluster.Aggregator, ofRemote); a.code != http.StatusServiceUnavailable || a.took > promptly {
			t.Errorf("want 503 within %v, got %v", promptly, a)
		}
		s.works(t, cluster.Aggregator, ofAggregator, ofCore, ofExtensions)
		if s.discovered(t, cluster.Aggregator)["remote.triune.dev"] == "" {
			t.Error("discovery has lost the group")
		}
	})

	t.Run("core without its etcd", func(t *testing.T) {
		full(t)
		for what, take := range map[string]func(*testing.T, cluster.Tier){"down": s.down, "frozen": s.frozen} {
			watch := s.watch(t, cluster.Core, ofCore)
			t.Run(what, func(t *testing.T) {
				take(t, cluster.EtcdOf(cluster.Core))
				s.fails(t, s.get(t, cluster.Aggregator, slow(ofCore)))
				s.fails(t, s.get(t, cluster.Core, slow(ofCore)))
				s.fails(t, s.create(t, cluster.Aggregator, ofCore, "lost", ""))
				s.unready(t, cluster.Core, "readyz", "etcd")
				s.unready(t, cluster.Core, "livez", "etcd")
				s.works(t, cluster.Core, ofExtensions)
				s.works(t, cluster.Aggregator, ofAggregator, ofExtensions, ofRemote)
				s.creates(t, cluster.Aggregator, ofExtensions, "core-etcd-"+what)
			})
			s.creates(t, cluster.Core, ofCore, "after-"+what)
			watch.hears(t, "after-"+what)
		}
	})

	t.Run("core and extensions without the aggregator", func(t *testing.T) {
		s.down(t, cluster.Aggregator)
		s.works(t, cluster.Core, ofCore, ofExtensions, "/readyz")
		s.works(t, cluster.Extensions, ofExtensions, "/readyz")
		s.creates(t, cluster.Core, ofCore, "without-aggregator")
		s.creates(t, cluster.Extensions, ofExtensions, "without-aggregator")
	})

	t.Run("extensions without its etcd", func(t *testing.T) {
		full(t)
		for what, take := range map[string]func(*testing.T, cluster.Tier){"down": s.down, "frozen": s.frozen} {
			watch := s.watch(t, cluster.Extensions, ofExtensions)
			t.Run(what, func(t *testing.T) {
				take(t, cluster.EtcdOf(cluster.Extensions))
				s.fails(t, s.get(t, cluster.Aggregator, slow(ofExtensions)))
				s.fails(t, s.create(t, cluster.Extensions, ofExtensions, "no-"+what, ""))
				s.unready(t, cluster.Extensions, "readyz", "etcd")
				s.unready(t, cluster.Extensions, "livez", "etcd")
				s.works(t, cluster.Aggregator, ofAggregator, ofCore, ofRemote)
				s.creates(t, cluster.Aggregator, ofCore, "extensions-etcd-"+what)
			})
			s.creates(t, cluster.Extensions, ofExtensions, "after-"+what)
			watch.hears(t, "after-"+what)
		}
	})

	t.Run("extensions without core", func(t *testing.T) {
		s.down(t, cluster.Core)
		s.works(t, cluster.Extensions, ofExtensions, "/readyz")
		s.creates(t, cluster.Extensions, ofExtensions, "extensions-without-core")
		reads := func(token string) answer {
			return s.ask(t, call{to: cluster.Extensions, path: ofExtensions, token: token})
		}
		// Its limits are half a second here, after which nothing that core said
		// of tokens counts, and of rules only what they say about reads.
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
		s.away(t, cluster.Core, reads(s.seen))
		s.away(t, cluster.Core, reads(s.unseen))
	})

	t.Run("every tier without NATS", func(t *testing.T) {
		s.down(t, cluster.NATS)
		s.whole(t)
		s.creates(t, cluster.Aggregator, ofCore, "without-nats")
		s.creates(t, cluster.Aggregator, ofExtensions, "without-nats")
	})

	t.Run("watches through a tier that is killed", func(t *testing.T) { s.testWatches(t) })
	t.Run("the order of the start", func(t *testing.T) { s.testStartOrder(t) })
}

// testWatches kills the tiers between a watch and its source. The watch ends; an
// informer comes back by itself and has neither lost nor repeated an event.
func (s *site) testWatches(t *testing.T) {
	config := rest.CopyConfig(restConfig(t, s.c))
	widgets := schema.GroupVersionResource{Group: "outage.triune.dev", Version: "v1", Resource: "widgets"}
	seen := startInformer(t, s.c, flavour{name: "widgets", informer: func(_ *testing.T, _ *rest.Config, _ string, resync time.Duration) cache.SharedIndexInformer {
		return dynamicinformer.NewFilteredDynamicSharedInformerFactory(dynamic.NewForConfigOrDie(config), resync, "outage", nil).ForResource(widgets).Informer()
	}}, "outage")
	var want []string
	for _, tier := range []cluster.Tier{cluster.Core, cluster.Aggregator} {
		watch := s.watch(t, cluster.Aggregator, ofExtensions)
		s.c.Kill(tier, 0)
		watch.ends(t)
		for i := range 3 {
			name := fmt.Sprintf("during-%s-%d", tier, i)
			s.creates(t, cluster.Extensions, ofExtensions, name)
			want = append(want, name)
		}
		s.start(t, tier)
		s.whole(t)
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

// testStartOrder starts every tier before those that it needs. None exits; each
// says in readyz what it waits for, and lives meanwhile, because a restart would
// not bring back another tier.
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
	becomes := func(tier cluster.Tier, endpoint string) {
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
		becomes(tier, "livez")
		s.unready(t, tier, "readyz", "informer-sync")
		if !s.c.Process(tier, 0).Running() {
			t.Errorf("%s has exited", tier)
		}
	}

	t.Run("core last", func(t *testing.T) {
		stop()
		start(cluster.Aggregator)
		waits(cluster.Aggregator)
		s.away(t, cluster.Core, s.get(t, cluster.Aggregator, ofCore))
		s.works(t, cluster.Aggregator, ofAggregator)
		start(cluster.Extensions)
		waits(cluster.Extensions)
		s.works(t, cluster.Extensions, ofExtensions)
		// What admission decides by is not known yet, nor are the rules of RBAC.
		for tier, path := range map[cluster.Tier]string{cluster.Aggregator: ofAggregator, cluster.Extensions: ofExtensions} {
			s.fails(t, s.create(t, tier, path, "early", ""))
			if a := s.ask(t, call{to: tier, path: path, token: "alice-token"}); a.code != http.StatusForbidden {
				t.Errorf("want 403, got %v", a)
			}
			s.away(t, cluster.Core, s.ask(t, call{to: tier, path: path, token: s.seen}))
		}
		start(cluster.Core)
		s.whole(t)
	})
	t.Run("extensions last", func(t *testing.T) {
		stop()
		start(cluster.Core)
		becomes(cluster.Core, "readyz")
		start(cluster.Aggregator)
		becomes(cluster.Aggregator, "readyz")
		for _, tier := range []cluster.Tier{cluster.Core, cluster.Aggregator} {
			s.away(t, cluster.Extensions, s.get(t, tier, ofExtensions))
			s.works(t, tier, ofCore, "/openapi/v2", "/openapi/v3")
			s.creates(t, tier, ofCore, "extensions-last-"+string(tier))
		}
		// Core cannot know what it has never been told; whoever looks for all
		// objects of a namespace asks the aggregator, which knows the APIService.
		s.becomesStale(t, cluster.Aggregator, "outage.triune.dev")
		s.works(t, cluster.Aggregator, ofAggregator+"/v1.outage.triune.dev")
		start(cluster.Extensions)
		s.whole(t)
	})
}
