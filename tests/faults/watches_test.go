package faults

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"triune.dev/tests/cluster"
	"triune.dev/tests/faults/witness"
)

const (
	// namespaces is the number of namespaces with writers; their names begin with prefix.
	namespaces = 20
	prefix     = "watched-"
	// settling is how long watchers may take after the last write.
	settling = 60 * time.Second
)

// scene is a cluster with writers and watchers.
type scene struct {
	*cluster.Cluster
	watchers, writesPerSecond int

	t        *testing.T
	http     *http.Client
	ledger   *witness.Ledger
	watching []*witness.Watcher
	writing  []*witness.Writer

	stopWriting  chan struct{}
	stopWatching context.CancelFunc
	writes       *errgroup.Group
	watches      errgroup.Group
	gone         atomic.Int64 // watchers that have ended
}

// open starts the watchers and then the writers.
func open(t *testing.T, c *cluster.Cluster, watchers, writesPerSecond int) *scene {
	t.Helper()
	s := &scene{
		Cluster: c, watchers: watchers, writesPerSecond: writesPerSecond,
		t: t, http: client(t, c), ledger: witness.NewLedger(), stopWriting: make(chan struct{}),
	}
	for i := range namespaces {
		createNamespace(t, c, s.http, fmt.Sprint(prefix, i))
	}
	_, since, err := witness.View{}.List(t.Context(), s.http, servers(c)[0], prefix)
	if err != nil {
		t.Fatal(err)
	}
	awaitStream(t, c, s.http)
	choices := random()
	s.watch(choices, since)
	s.write(choices)
	return s
}

// watch starts all watchers. A few see everything, some one shard in all namespaces, and
// most one or two shards of a namespace.
func (s *scene) watch(choices *rand.Rand, since int64) {
	ctx, cancel := context.WithCancel(s.t.Context())
	s.stopWatching = cancel
	s.t.Cleanup(cancel)
	var h *http.Client
	for i := range s.watchers {
		if i%50 == 0 {
			h = client(s.t, s.Cluster)
		}
		v := witness.View{Namespace: fmt.Sprint(prefix, choices.IntN(namespaces)), In: []int{choices.IntN(witness.Shards)}}
		switch {
		case i%100 == 0:
			v = witness.View{}
		case i%100 < 3:
			v.Namespace = ""
		case i%10 == 5:
			v.In = nil
		case i%10 == 6:
			v.In = []int{0, 2}
		case i%10 == 7:
			not := choices.IntN(witness.Shards)
			v.In, v.Not = nil, &not
		}
		w := &witness.Watcher{
			HTTP: h, URLs: servers(s.Cluster), View: v, Since: since, Prefix: prefix,
			Random: rand.New(rand.NewPCG(*seed, uint64(1000+i))),
		}
		s.watching = append(s.watching, w)
		s.watches.Go(func() error {
			defer s.gone.Add(1)
			return w.Run(ctx)
		})
	}
}

// write starts all writers, which share the rate. There are so many that each may wait half
// a second for its answers, so that the rate depends on the servers, not on scheduling.
func (s *scene) write(choices *rand.Rand) {
	count := max(namespaces, s.writesPerSecond/2)
	var ctx context.Context
	s.writes, ctx = errgroup.WithContext(s.t.Context())
	for i := range count {
		w := &witness.Writer{
			HTTP: s.http, URLs: servers(s.Cluster), Ledger: s.ledger, Namespace: fmt.Sprint(prefix, i%namespaces),
			Prefix: fmt.Sprintf("w%d", i), Every: time.Second * time.Duration(count) / time.Duration(s.writesPerSecond),
			Random: rand.New(rand.NewPCG(*seed, choices.Uint64())),
		}
		s.writing = append(s.writing, w)
		s.writes.Go(func() error { return w.Run(ctx, s.stopWriting) })
	}
}

// phase waits for d and returns the number of writes per second.
func (s *scene) phase(name string, d time.Duration) float64 {
	begin, before := time.Now(), s.ledger.Len()
	pause(s.t.Context(), d)
	return s.report(name, begin, before)
}

func (s *scene) report(name string, begin time.Time, before int) float64 {
	took := time.Since(begin)
	rate := float64(s.ledger.Len()-before) / took.Seconds()
	s.t.Logf("%s: %.1f s, %.0f writes/s", name, took.Seconds(), rate)
	if n := s.gone.Load(); n > 0 {
		s.t.Errorf("%s: %d watchers have ended", name, n)
	}
	return rate
}

// keepsUp fails the test if the rate of a phase is less than half of the undisturbed one:
// servers are as fast without NATS, after it returns, and after thousands of writes.
func (s *scene) keepsUp(name string, rate, undisturbed float64) {
	s.t.Helper()
	if rate < undisturbed/2 {
		s.t.Errorf("%s: %.0f writes/s, %.0f when nothing happened", name, rate, undisturbed)
	}
}

// do is a phase that lasts as long as f.
func (s *scene) do(name string, f func(context.Context) error) {
	s.t.Helper()
	begin, before := time.Now(), s.ledger.Len()
	if err := f(s.t.Context()); err != nil {
		s.t.Fatalf("%s: %v", name, err)
	}
	s.report(name, begin, before)
}

// close stops the writers, and compares what every watcher received with the changes and
// with the final state.
func (s *scene) close() {
	s.t.Helper()
	close(s.stopWriting)
	if err := s.writes.Wait(); err != nil {
		s.t.Fatal(err)
	}
	for _, w := range s.writing[:namespaces] {
		if err := w.Mark(s.t.Context()); err != nil {
			s.t.Fatal(err)
		}
	}
	begin := time.Now()
	ctx, cancel := context.WithTimeout(s.t.Context(), settling)
	defer cancel()
	late := 0
	for _, w := range s.watching {
		if !w.Await(ctx, s.ledger) {
			late++
		}
	}
	s.t.Logf("the last of %d watchers had seen the end after %.1f s", len(s.watching), time.Since(begin).Seconds())
	if late > 0 {
		s.t.Errorf("%d watchers have not seen the end", late)
	}
	awaitStream(s.t, s.Cluster, s.http)
	s.stopWatching()
	if err := s.watches.Wait(); err != nil {
		s.t.Error(err)
	}
	s.verify()
}

// verify reports a few of the wrong watchers, and counts all of them.
func (s *scene) verify() {
	s.t.Helper()
	wrong, events, sum := 0, 0, witness.Counts{}
	lists := map[string]map[witness.Key]witness.Event{}
	for _, w := range s.watching {
		counts := w.Counts()
		sum.Connections += counts.Connections
		sum.Bookmarks += counts.Bookmarks
		sum.Refusals += counts.Refusals
		sum.Expired += counts.Expired
		events += w.Told()
		err := w.Verify(s.ledger)
		if err == nil {
			err = s.compare(w, lists)
		}
		if err != nil {
			if wrong++; wrong <= 3 {
				s.t.Error(err)
			}
		}
	}
	troubles, longest := 0, time.Duration(0)
	for _, w := range s.writing {
		troubles, longest = troubles+w.Troubles, max(longest, w.Longest)
	}
	s.t.Logf("%d watchers of %d changes: %d wrong, %d events, %+v; writers: %d requests without an answer, the longest change took %v",
		len(s.watching), s.ledger.Len(), wrong, events, sum, troubles, longest.Round(time.Millisecond))
	if wrong > 0 || sum.Expired > 0 {
		s.t.Errorf("%d watchers are wrong, %d were told 410", wrong, sum.Expired)
	}
}

// compare compares the state that a watcher has rebuilt with the LIST of its view.
func (s *scene) compare(w *witness.Watcher, lists map[string]map[witness.Key]witness.Event) error {
	view := w.View.String()
	if lists[view] == nil {
		server := servers(s.Cluster)[len(lists)%len(servers(s.Cluster))]
		list, _, err := w.View.List(s.t.Context(), s.http, server, prefix)
		if err != nil {
			return err
		}
		if err := s.ledger.Compare(w.View, list); err != nil {
			return err
		}
		lists[view] = list
	}
	return w.Compare(lists[view])
}

// size returns short with -short.
func size(short, long int) int {
	if testing.Short() {
		return short
	}
	return long
}

// Neither killing NATS for a minute nor killing any tier loses or repeats an event, with
// 200 writes per second and 500 watchers. As in real clusters, most watchers see a part of
// the changes: five of 500 see everything, ten a quarter, and the others one of twenty
// namespaces or less, so that a write reaches about 20 of them. Two processor cores can do
// that, clients and servers together.
func TestWatchersMissNothing(t *testing.T) {
	c := run(t)
	s := open(t, c, size(50, 500), size(100, 200))
	undisturbed := s.phase("nothing happens", time.Duration(size(2, 10))*time.Second)
	if c.Process(cluster.NATS, 0) != nil {
		c.Kill(cluster.NATS, 0)
		const away, back = "NATS is away", "NATS is back"
		s.keepsUp(away, s.phase(away, time.Duration(size(5, 60))*time.Second), undisturbed)
		s.do("NATS comes back", func(ctx context.Context) error { return c.StartReplica(ctx, cluster.NATS, 0) })
		s.keepsUp(back, s.phase(back, time.Duration(size(3, 10))*time.Second), undisturbed)
	}
	for _, tier := range c.ServingTiers() {
		s.restart(tier)
		s.phase(string(tier)+" is back", time.Duration(size(1, 5))*time.Second)
	}
	s.close()
}

// Informers that lose their server resume from their last resourceVersion; a thousand of
// them must not list again.
func TestInformersResume(t *testing.T) {
	c := run(t)
	s := open(t, c, size(200, 1000), 50)
	s.phase("nothing happens", time.Duration(size(2, 10))*time.Second)
	for _, tier := range c.ServingTiers() {
		s.restart(tier)
		s.phase(string(tier)+" is back", time.Duration(size(2, 10))*time.Second)
	}
	s.close()
}

// restart kills all replicas of a tier at once and starts them again.
func (s *scene) restart(tier cluster.Tier) {
	s.t.Helper()
	s.do("all of "+string(tier)+" is killed and started", func(ctx context.Context) error {
		for i := 0; s.Process(tier, i) != nil; i++ {
			s.Kill(tier, i)
		}
		for i := 0; s.Process(tier, i) != nil; i++ {
			if err := s.StartReplica(ctx, tier, i); err != nil {
				return err
			}
		}
		return nil
	})
}
