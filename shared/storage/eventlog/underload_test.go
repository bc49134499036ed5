package eventlog

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"triune.dev/shared/testing/polltest"
)

// leaderLimit bounds the time without leaders after a fault, on any machine. The goal is ten
// seconds.
const leaderLimit = 30 * time.Second

// Relays, servers of NATS, and members of etcd are paused, killed, partitioned, and lose their
// files under load. Every watcher, whether it stays or resumes, gets each acknowledged write
// once and in order. No watch ends, and the streams have leaders again soon after each fault.
func TestFaultsUnderLoad(t *testing.T) {
	f := newFleet(t)
	run := newUnderLoad(t, f)
	faults := f.faults(t)
	for start, round := time.Now(), 0; round == 0 || time.Since(start) < 10*time.Minute && !testing.Short(); round++ {
		for _, fault := range faults {
			if !fault.long || !testing.Short() {
				run.inject(t, fault, round)
			}
		}
	}
	run.end(t)
}

// fault is a kind of fault. Its rounds hit different processes.
type fault struct {
	name string
	do   func(round int)
	long bool // skipped in short mode, where processes that lose their files are killed anyway
}

func (f *fleet) faults(t *testing.T) []fault {
	next := func(p peers, round int) *process { return p.all[round%3] }
	// Servers elect another leader after four to nine seconds without one.
	away := 5 * time.Second
	if !testing.Short() {
		away = 10 * time.Second
	}
	return []fault{
		{name: "the elected relay is paused for longer than its lease", do: func(int) { f.elected(t).pause(t, 7*time.Second) }},
		{name: "a server loses its files", do: func(round int) {
			s := next(f.servers, round)
			s.restart(t, func() { removeAll(t, s.part.Dir) })
		}},
		{name: "a member loses its files and is replaced", do: func(round int) { f.replace(t, next(f.members, round)) }},
		{name: "a server is paused", do: func(round int) { next(f.servers, round+1).pause(t, away) }},
		{name: "a member is paused", do: func(round int) { next(f.members, round+1).pause(t, 4*time.Second) }},
		{name: "two servers are parted", do: func(round int) { f.servers.cut(t, round%3, (round+1)%3, away) }},
		{name: "two members are parted", do: func(round int) { f.members.cut(t, round%3, (round+1)%3, 4*time.Second) }},
		{name: "the elected relay is killed", do: func(int) { f.elected(t).restart(t, nil) }},
		{name: "a server is killed", do: func(round int) { next(f.servers, round+2).restart(t, nil) }, long: true},
		{name: "a member is killed", do: func(round int) { next(f.members, round+2).restart(t, nil) }, long: true},
		{name: "the network between two servers stalls", do: func(round int) { f.servers.stall(round%3, (round+1)%3, away) }, long: true},
		{name: "the network between two members stalls", do: func(round int) { f.members.stall(round%3, (round+1)%3, 4*time.Second) }, long: true},
	}
}

// underLoad is a fleet with its load and its watchers.
type underLoad struct {
	*fleet
	audit
	load    *load
	readers []*Reader // of the watchers that stay
	resumer *resumer
	leaders stopwatch // laps are the times at which all streams had a leader

	samples, onEtcd atomic.Int64 // of the readers
	results         []*result    // of each kind of fault

	stop func() // ends the load
}

// result holds the measurements of a kind of fault.
type result struct {
	name string
	// From the end of the fault until all streams had leaders, and until everything was well.
	led, well durations
	// The longest time during which a stream lacked a leader, and the longest without a write.
	leaderless, unwritten durations
	samples, onEtcd       int64 // of the readers
}

type durations []time.Duration

func (d durations) String() string {
	var sum, longest time.Duration
	for _, one := range d {
		sum, longest = sum+one, max(longest, one)
	}
	return fmt.Sprintf("%.1f s | %.1f s", (sum / time.Duration(max(len(d), 1))).Seconds(), longest.Seconds())
}

func newUnderLoad(t *testing.T, f *fleet) *underLoad {
	t.Helper()
	u := &underLoad{fleet: f, load: &load{etcd: f.dial(t), writers: 10, every: 80 * time.Millisecond, acknowledged: map[int64]string{}}}
	u.audit = audit{routes: f.routes, witness: newWitness(t, f.dial(t), f.routes), load: u.load}
	config := func(tier Tier) ReaderConfig {
		return ReaderConfig{Etcd: f.dial(t), Conn: f.connect(t, f.urls...), Routes: f.routes, Tier: tier}
	}
	for _, tier := range []Tier{Core, Extensions} {
		r, err := NewReader(config(tier))
		if err != nil {
			t.Fatal(err)
		}
		sink := newRecorder()
		background(t, func(ctx context.Context) error { return r.Run(ctx, sink) })
		u.readers = append(u.readers, r)
		u.watchers = append(u.watchers, watcher{"the watcher of " + string(tier), tier, sink})
		waitSource(t, r, sink, SourceStream)
	}
	u.resumer = &resumer{recorder: newRecorder(), config: config(Core), resources: []string{"/registry/pods/", "/registry/configmaps/"}}
	background(t, u.resumer.run)
	u.watchers = append(u.watchers, watcher{"the watcher that comes back", Core, u.resumer.recorder})
	for _, w := range u.watchers {
		w.wait(t, "first reset", func() bool { return len(w.resets) > 0 })
	}
	loading, cancel := context.WithCancel(t.Context())
	var ending sync.WaitGroup
	ending.Go(func() { u.load.run(loading) })
	ending.Go(func() { u.watchSources(loading) })
	u.watchLeaders(t, loading, &ending)
	u.stop = func() {
		cancel()
		ending.Wait()
	}
	t.Cleanup(u.stop)
	return u
}

// watchSources samples how often readers use etcd.
func (u *underLoad) watchSources(ctx context.Context) {
	for tick := time.NewTicker(10 * time.Millisecond); ctx.Err() == nil; <-tick.C {
		for _, r := range u.readers {
			if u.samples.Add(1); r.Status().Source == SourceEtcd {
				u.onEtcd.Add(1)
			}
		}
	}
}

// watchLeaders asks every server for the leaders of the streams, because one may be paused.
func (u *underLoad) watchLeaders(t *testing.T, ctx context.Context, ending *sync.WaitGroup) {
	t.Helper()
	var servers []jetstream.JetStream
	for _, url := range u.urls {
		js, err := jetstream.New(u.connect(t, url))
		if err != nil {
			t.Fatal(err)
		}
		servers = append(servers, js)
	}
	led := func(stream string) bool {
		ctx, cancel := context.WithTimeout(ctx, 500*time.Millisecond)
		defer cancel()
		answers := make(chan bool, len(servers))
		for _, js := range servers {
			go func() {
				s, err := js.Stream(ctx, stream)
				answers <- err == nil && s.CachedInfo().Cluster.Leader != ""
			}()
		}
		for range servers {
			if <-answers {
				return true
			}
		}
		return false
	}
	ending.Go(func() {
		for tick := time.NewTicker(100 * time.Millisecond); ctx.Err() == nil; <-tick.C {
			all := true
			for _, tier := range Tiers {
				all = all && led(u.routes.Stream(tier))
			}
			if all {
				u.leaders.lap()
			}
		}
	})
}

// inject injects a fault, waits until everything is well, and verifies the watchers.
func (u *underLoad) inject(t *testing.T, f fault, round int) {
	t.Helper()
	u.leaders.read()
	u.load.silence.read()
	samples, onEtcd := u.samples.Load(), u.onEtcd.Load()
	f.do(round)
	start := time.Now()
	polltest.Until(t, leaderLimit, "all streams have leaders after "+f.name, func() bool { return u.leaders.lapped(start) })
	led := time.Since(start)
	u.waitWell(t, f.name)
	well, leaderless, unwritten := time.Since(start), u.leaders.read(), u.load.silence.read()
	samples, onEtcd = u.samples.Load()-samples, u.onEtcd.Load()-onEtcd
	t.Logf("%s: leaders after %.1f s, well after %.1f s, no leader for %.1f s, no write for %.1f s, %.0f %% of the time on etcd", f.name,
		led.Seconds(), well.Seconds(), leaderless.Seconds(), unwritten.Seconds(), share(onEtcd, samples))
	u.verify(t, u.mustPut(t, "pods/ns/mark", fmt.Sprint(f.name, round)))
	for _, all := range [][]*process{u.members.all, u.servers.all, u.relays} {
		for _, p := range all {
			p.alive(t)
		}
	}
	if t.Failed() {
		t.FailNow()
	}
	r := u.result(f.name)
	r.led, r.well = append(r.led, led), append(r.well, well)
	r.leaderless, r.unwritten = append(r.leaderless, leaderless), append(r.unwritten, unwritten)
	r.samples, r.onEtcd = r.samples+samples, r.onEtcd+onEtcd
}

func share(part, whole int64) float64 { return 100 * float64(part) / float64(cmp.Or(whole, 1)) }

func (u *underLoad) result(name string) *result {
	for _, r := range u.results {
		if r.name == name {
			return r
		}
	}
	r := &result{name: name}
	u.results = append(u.results, r)
	return r
}

// waitWell waits until the streams carry events to the watchers that stay, and all servers and
// members have everything.
func (u *underLoad) waitWell(t *testing.T, after string) {
	t.Helper()
	for _, r := range u.readers {
		polltest.Until(t, hang, "the stream carries events after "+after, func() bool {
			before := r.Status()
			time.Sleep(500 * time.Millisecond)
			now := r.Status()
			return before.Source == SourceStream && now.Since.Equal(before.Since) && now.Revision > before.Revision
		})
	}
	u.servers.waitConnected(t)
	u.members.waitConnected(t)
	u.membersLevel(t)
	u.level(t, hang)
}

// end stops the load and reports the results.
func (u *underLoad) end(t *testing.T) {
	t.Helper()
	u.stop()
	u.verify(t, u.mustPut(t, "pods/ns/last", "x"))
	if wrong := u.checkStream(t); wrong != "" {
		t.Error(wrong)
	}
	if u.resumer.comebacks.Load() == 0 {
		t.Error("the watcher that comes back never did")
	}
	var report strings.Builder
	fmt.Fprintf(&report, "%d writes acknowledged, %d not; the watcher came back %d times; %.1f %% of the time on etcd\n",
		u.load.writes.Load(), u.load.failures.Load(), u.resumer.comebacks.Load(), share(u.onEtcd.Load(), u.samples.Load()))
	report.WriteString("fault | times | leaders again: mean | longest | well: mean | longest | no leader: mean | longest | no write: mean | longest | on etcd\n")
	for _, r := range u.results {
		fmt.Fprintf(&report, "%s | %d | %s | %s | %s | %s | %.0f %%\n",
			r.name, len(r.well), r.led, r.well, r.leaderless, r.unwritten, share(r.onEtcd, r.samples))
	}
	for i, r := range u.readers {
		s := r.Status()
		fmt.Fprintf(&report, "%s: %d gaps, %d stalls\n", u.watchers[i].name, s.Gaps, s.Stalls)
		if s.Resets > 0 {
			t.Errorf("%s was reset", u.watchers[i].name)
		}
	}
	t.Log(report.String())
}
