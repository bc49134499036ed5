package workload

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"triune.dev/tests/bench/attack"
	"triune.dev/tests/bench/load"
	"triune.dev/tests/bench/report"
	"triune.dev/tests/bench/stats"
)

// attacks measure the effect of an attack on two other clients: a user who reads one object
// on many connections, each a moment after the last response, and an administrator who
// writes. Intervals with and without the attack alternate. The clients leave the machine
// idle time, so the rate of the reads depends only on latencies; the CPU time of the attack
// is measured separately.
var attacks = func() []Workload {
	var all []Workload
	for _, a := range attack.All() {
		all = append(all, Workload{
			Name: "attack-" + a.Name, Title: a.Title, Group: "attacks", Figure: report.Kept, Limits: map[string]float64{"": 90},
			Aside: true, Only: single,
			Run: func(ctx context.Context, e *Env, publish Publish) error { return underAttack(ctx, e, a, publish) },
		})
	}
	return all
}()

const (
	victims        = 40                     // connections of the reader, each with one request at a time
	thinking       = 100 * time.Millisecond // between a response and the next request of a connection
	writesASecond  = 20                     // of the administrator
	attackedSpace  = "attacked"
	attackedObject = "/api/v1/namespaces/" + attackedSpace + "/configmaps"
	// patience is the timeout of a client.
	patience = 10 * time.Second
)

func underAttack(ctx context.Context, e *Env, a attack.Attack, publish Publish) error {
	if err := e.attacked(ctx); err != nil {
		return err
	}
	reading, writing := load.DialAll(victims, e.victim), load.DialAll(4, e.Admin)
	defer load.CloseAll(reading)
	defer load.CloseAll(writing)
	if err := e.dial(ctx, append(slices.Clone(reading), writing...)); err != nil {
		return err
	}
	length := pick(e, time.Second, 2*time.Second)
	if _, err := e.witness(ctx, reading, writing, time.Second); err != nil { // warm
		return err
	}
	site := &attack.Site{Addr: strings.TrimPrefix(e.Targets[0].URL, "https://"), TLS: e.Targets[0].TLS, Nobody: e.Nobody.Token}
	if err := e.resetPeaks(); err != nil {
		return err
	}
	before, err := e.resident()
	if err != nil {
		return err
	}
	var alone, beside witnessed
	var kept []float64
	made := 0
	for range pick(e, 1, 3) {
		without, err := e.witness(ctx, reading, writing, length)
		if err != nil {
			return err
		}
		if without.failed+without.unwritten > 0 || without.reads == 0 {
			return fmt.Errorf("%w: %d requests and %d writes failed without an attack", load.ErrAnswer, without.failed, without.unwritten)
		}
		running := a.Start(ctx, site)
		with, err := e.witness(ctx, reading, writing, length)
		n := running.Stop()
		if err != nil {
			return err
		}
		if n == 0 {
			return fmt.Errorf("%w: the server has taken no attack", load.ErrAnswer)
		}
		made += n
		kept = append(kept, 100*with.rate()/without.rate())
		alone.add(without)
		beside.add(with)
		if err := pause(ctx, time.Second); err != nil {
			return err
		}
	}
	s := beside.per(max(1, beside.reads))
	s.Value, s.Rate = stats.SpreadOf(kept).Median, beside.rate()
	s.P50, s.P99 = milli(beside.percentile(0.5)), milli(beside.percentile(0.99))
	if s.Memory, err = e.memory(); err != nil {
		return err
	}
	s.Notes = map[string]float64{
		"without the attack/s": alone.rate(), "p50 ms without": milli(alone.percentile(0.5)), "p99 ms without": milli(alone.percentile(0.99)),
		"attacks": float64(made), "failed GETs": float64(beside.failed),
		"writes": float64(beside.writes), "failed writes": float64(beside.unwritten),
		"cores": beside.beyond(alone), "MB before": before / 1e6,
	}
	publish("", 0, s)
	e.profile(ctx, func(ctx context.Context) error {
		running := a.Start(ctx, site)
		defer running.Stop()
		_, err := e.witness(ctx, reading, writing, profileFor)
		return err
	})
	return nil
}

// attacked creates a user who may read config maps of a namespace.
func (e *Env) attacked(ctx context.Context) error {
	if err := e.namespace(ctx, attackedSpace); err != nil {
		return err
	}
	return e.once("who reads beside attacks", func() error {
		var err error
		if e.victim, err = e.accountOf(ctx, attackedSpace, "reader"); err != nil {
			return err
		}
		of := rbacPath + "/namespaces/" + attackedSpace
		for _, r := range []load.Request{
			post(attackedObject, object{"metadata": object{"name": "small"}, "data": object{"a": "b"}}),
			post(of+"/roles", object{"metadata": object{"name": "reader"}, "rules": rules("configmaps")}),
			post(of+"/rolebindings", object{
				"metadata": object{"name": "reader"}, "roleRef": roleRef("Role", "reader"),
				"subjects": []object{{"kind": "ServiceAccount", "name": "reader", "namespace": attackedSpace}},
			}),
		} {
			if _, err := e.send(ctx, r); err != nil {
				return err
			}
		}
		conn := load.Dial(e.victim)
		defer conn.Close()
		return e.allowed(ctx, conn, load.Request{Path: attackedObject + "/small", MinSize: 100})
	})
}

// witnessed has the measurements of one interval.
type witnessed struct {
	clocks
	wall              time.Duration
	reads, failed     int
	writes, unwritten int
	latencies         []time.Duration // of reads
}

func (w *witnessed) rate() float64 { return float64(w.reads) / w.wall.Seconds() }

func (w *witnessed) percentile(p float64) time.Duration {
	slices.Sort(w.latencies)
	return stats.Percentile(w.latencies, p)
}

// beyond returns the number of cores that the servers used beyond those for as many reads
// without the attack.
func (w *witnessed) beyond(without witnessed) float64 {
	sum := func(all map[string]time.Duration) (sum time.Duration) {
		for _, t := range all {
			sum += t
		}
		return sum
	}
	reading := float64(sum(without.server)) / float64(without.reads) * float64(w.reads)
	return (float64(sum(w.server)) - reading) / float64(w.wall)
}

func (w *witnessed) add(more witnessed) {
	if w.server == nil {
		w.server = map[string]time.Duration{}
	}
	for name, t := range more.server {
		w.server[name] += t
	}
	w.client += more.client
	w.wall += more.wall
	w.reads, w.failed = w.reads+more.reads, w.failed+more.failed
	w.writes, w.unwritten = w.writes+more.writes, w.unwritten+more.unwritten
	w.latencies = append(w.latencies, more.latencies...)
}

// witness reads and writes for some time. It counts failures and retries nothing, except
// for what Go's client does by itself.
func (e *Env) witness(ctx context.Context, reading, writing []*load.Conn, length time.Duration) (witnessed, error) {
	var w witnessed
	var mu sync.Mutex // guards w
	var err error
	w.clocks, err = e.spent(ctx, func() error {
		begin := time.Now()
		var clients sync.WaitGroup
		for i, conn := range reading {
			clients.Go(func() {
				buffer := make([]byte, 4<<10)
				for first := time.Duration(i) * thinking / victims; time.Since(begin) < length; first = thinking {
					if pause(ctx, first) != nil {
						return
					}
					sent := time.Now()
					err := try(ctx, conn, load.Request{Path: attackedObject + "/small", Accept: jsonType, MinSize: 100}, buffer)
					took := time.Since(sent)
					mu.Lock()
					w.latencies = append(w.latencies, took)
					if err == nil {
						w.reads++
					} else {
						w.failed++
					}
					mu.Unlock()
				}
			})
		}
		for i, conn := range writing {
			clients.Go(func() {
				buffer := make([]byte, 4<<10)
				every := time.Second * time.Duration(len(writing)) / writesASecond
				for due := begin.Add(every * time.Duration(i) / time.Duration(len(writing))); due.Sub(begin) < length; due = due.Add(every) {
					if pause(ctx, time.Until(due)) != nil {
						return
					}
					mu.Lock()
					e.touched++
					name := fmt.Sprintf("write-%d", e.touched)
					mu.Unlock()
					err := try(ctx, conn, post(attackedObject, configMap(name, i)), buffer)
					mu.Lock()
					w.writes++
					if err != nil {
						w.unwritten++
					}
					mu.Unlock()
				}
			})
		}
		clients.Wait()
		w.wall = time.Since(begin)
		return context.Cause(ctx)
	})
	return w, err
}

// try sends a request that may fail.
func try(ctx context.Context, conn *load.Conn, r load.Request, buffer []byte) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	_, err := conn.Do(ctx, r, buffer)
	return err
}
