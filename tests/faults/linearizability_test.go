package faults

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"triune.dev/tests/cluster"
	"triune.dev/tests/faults/configmaps"
	"triune.dev/tests/faults/history"
)

const (
	// clientCount is the number of clients; each uses all servers in turn.
	clientCount = 6
	// patience is the timeout of a client. A paused server may execute a request long after
	// it.
	patience = 1500 * time.Millisecond
	// calm is the time of a round before and after its fault.
	calm = time.Second
	// recovery is how long a request may take after the fault is over. A reader of the
	// event log asks etcd after three seconds of silence.
	recovery = 10 * time.Second
	// decision bounds the search for an order of one round's requests.
	decision = 2 * time.Minute
)

// GET, LIST without resourceVersion, and writes are linearizable in Kubernetes
// (https://kubernetes.io/docs/reference/using-api/api-concepts/#resource-versions: "most
// recent"), with any replica and during any fault.
func TestLinearizability(t *testing.T) {
	c := run(t)
	n := &nemesis{Cluster: c, http: client(t, c), t: t}
	awaitStream(t, c, n.http)
	faults := n.faults()
	rounds := len(faults) * 3
	if testing.Short() {
		rounds = min(5, len(faults))
	}
	if *onlyFor != 0 {
		rounds = *onlyFor
	}
	choices := random()
	var order []int
	for len(order) < rounds {
		order = append(order, choices.Perm(len(faults))...)
	}
	for i, which := range order[:rounds] {
		f := faults[which]
		if !t.Run(fmt.Sprintf("%02d %s", i, f.name), func(t *testing.T) {
			n.t = t
			round(t, n, fmt.Sprintf("round-%d", i), choices.Uint64(), f)
		}) {
			return // later failures would be hard to understand
		}
	}
	awaitStream(t, c, n.http)
}

// round lets clients work in an empty namespace during a fault.
func round(t *testing.T, n *nemesis, namespace string, seed uint64, f fault) {
	createNamespace(t, n.Cluster, n.http, namespace)
	h := history.New()
	clients := clientsOf(t, n.Cluster, namespace)
	ctx, done := context.WithCancel(t.Context())
	defer done()
	var g errgroup.Group
	g.Go(func() error { return configmaps.Exercise(ctx, h, seed, clients) })
	pause(ctx, calm)
	before := h.Len()
	err := f.strike(ctx, n)
	during := h.Len() - before
	pause(ctx, calm)
	done()
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	finalList(t, h, clients)
	picture := ""
	if *pictures != "" {
		picture = filepath.Join(*pictures, namespace+".html")
	}
	begin := time.Now()
	if err := h.Check(decision, picture); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d requests, %d of them during the fault, %d writes of unknown outcome, checked in %v",
		h.Len(), during, h.Unknown(), time.Since(begin).Round(time.Millisecond))
}

// finalList lists the whole namespace at every server.
func finalList(t *testing.T, h *history.History, clients []*configmaps.Client) {
	t.Helper()
	last := *clients[0]
	last.Timeout = recovery
	for range last.URLs {
		r := history.Request{Verb: history.List}
		sent := h.Now()
		a, err := last.Do(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		h.Add(0, r, sent, a)
		if took := time.Duration(h.Now() - sent); took > time.Second {
			t.Logf("after the fault a list took %v: %s", took.Round(time.Millisecond), a.Detail)
		}
		if a.Result != history.Done {
			t.Errorf("after the fault a list is %s: %s", a.Result, a.Detail)
		}
	}
}

func clientsOf(t *testing.T, c *cluster.Cluster, namespace string) []*configmaps.Client {
	t.Helper()
	var clients []*configmaps.Client
	urls := servers(c)
	for i := range clientCount {
		// Each begins with a different server.
		mine := append(append([]string{}, urls[i%len(urls):]...), urls[:i%len(urls)]...)
		clients = append(clients, &configmaps.Client{
			HTTP: client(t, c), URLs: mine, Namespace: namespace, Timeout: patience, Rest: 20 * time.Millisecond,
		})
	}
	return clients
}
