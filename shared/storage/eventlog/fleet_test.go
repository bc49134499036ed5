package eventlog

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// fleet runs the event log of a large cluster: three members of etcd, three servers of NATS,
// and two relays, each as a separate process.
type fleet struct {
	*bench
	members, servers peers
	relays           []*process
}

// peers are processes that are connected by links.
type peers struct {
	links
	all []*process
	// connected reports whether one process has a connection to another.
	connected func(t *testing.T, from, to int) bool
}

func newFleet(t *testing.T) *fleet {
	t.Helper()
	f := &fleet{bench: &bench{routes: NewRoutes(DefaultCluster, "/registry")}}
	f.stream.Replicas = 3
	dir := t.TempDir()
	f.startMembers(t, dir)
	f.startServers(t, dir)
	for i := range 2 {
		p := &process{role: "relay", part: part{Name: fmt.Sprint("relay", i), Etcd: f.endpoints, NATS: f.urls, Replicas: 3}}
		f.relays = append(f.relays, p)
		p.start(t)
	}
	return f
}

// newPeers returns processes that are not started yet, and the links between them.
func newPeers(t *testing.T, role, name, dir string) peers {
	t.Helper()
	var p peers
	var targets []string
	for i := range 3 {
		name := fmt.Sprint(name, i)
		p.all = append(p.all, &process{role: role, part: part{
			Name: name, Dir: filepath.Join(dir, name), Port: freePort(t), PeersPort: freePort(t), Monitor: freePort(t),
		}})
		targets = append(targets, fmt.Sprintf("127.0.0.1:%d", p.all[i].part.PeersPort))
	}
	p.links = newLinks(t, targets)
	return p
}

func (f *fleet) startMembers(t *testing.T, dir string) {
	t.Helper()
	f.members = newPeers(t, "etcd", "e", dir)
	// Members can reach each other only through the proxy: their addresses mean nothing
	// elsewhere.
	f.members.connected = func(_ *testing.T, from, to int) bool {
		connected, _ := f.members.links[link{from, to}].passes()
		return connected
	}
	// Addresses for documentation (RFC 5737); only the proxies resolve them.
	hosts := []string{"192.0.2.1:2380", "192.0.2.2:2380", "192.0.2.3:2380"}
	var cluster []string
	for i, m := range f.members.all {
		m.part.URL = "http://" + hosts[i]
		cluster = append(cluster, m.part.Name+"="+m.part.URL)
		f.endpoints = append(f.endpoints, fmt.Sprintf("http://127.0.0.1:%d", m.part.Port))
	}
	for i, m := range f.members.all {
		m.part.Members, m.part.Proxy = strings.Join(cluster, ","), f.members.forward(t, i, hosts)
		m.start(t)
	}
	f.etcd = f.dial(t)
	f.membersLevel(t)
}

func (f *fleet) startServers(t *testing.T, dir string) {
	t.Helper()
	f.servers = newPeers(t, "nats", "n", dir)
	f.servers.connected = f.routed
	for i, s := range f.servers.all {
		// The list includes the server itself, so that it knows the size of the cluster.
		s.part.Routes = []string{fmt.Sprintf("127.0.0.1:%d", s.part.PeersPort)}
		for to := range f.servers.all {
			if to != i {
				s.part.Routes = append(s.part.Routes, f.servers.links[link{i, to}].addr())
			}
		}
		f.urls = append(f.urls, fmt.Sprintf("nats://127.0.0.1:%d", s.part.Port))
		s.start(t)
	}
	f.servers.waitConnected(t)
}

// ask gets a monitoring page of a process. It returns nothing if that fails.
func ask(t *testing.T, url string) []byte {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return nil
	}
	return body
}

// routed reports whether a server has a route to another, in either direction.
func (f *fleet) routed(t *testing.T, from, to int) bool {
	t.Helper()
	var routes struct {
		Routes []struct {
			Name string `json:"remote_name"`
		}
	}
	if json.Unmarshal(ask(t, fmt.Sprintf("http://127.0.0.1:%d/routez", f.servers.all[from].part.Monitor)), &routes) != nil {
		return false
	}
	for _, route := range routes.Routes {
		if route.Name == f.servers.all[to].part.Name {
			return true
		}
	}
	return false
}

// listMembers returns the IDs of the members by their URLs, or nil if etcd does not answer.
func (f *fleet) listMembers(t *testing.T) map[string]uint64 {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	list, err := f.etcd.MemberList(ctx)
	if err != nil {
		return nil
	}
	ids := map[string]uint64{}
	for _, m := range list.Members {
		ids[m.PeerURLs[0]] = m.ID
	}
	return ids
}

func (f *fleet) memberID(t *testing.T, m *process) (id uint64) {
	t.Helper()
	eventually(t, "etcd knows "+m.part.Name, func() bool {
		id = f.listMembers(t)[m.part.URL]
		return id != 0
	})
	return id
}

// cut cuts the network between two processes for a while; both keep running.
func (p *peers) cut(t *testing.T, a, b int, d time.Duration) {
	t.Helper()
	both := p.all[a].part.Name + " and " + p.all[b].part.Name
	for _, l := range p.between(a, b) {
		l.cut()
		defer l.mend()
	}
	eventually(t, both+" are parted", func() bool { return !p.connected(t, a, b) && !p.connected(t, b, a) })
	time.Sleep(d)
	if p.connected(t, a, b) || p.connected(t, b, a) {
		t.Errorf("%s have found another way", both)
	}
	_, there := p.links[link{a, b}].passes()
	_, back := p.links[link{b, a}].passes()
	if there+back == 0 {
		t.Errorf("%s have not missed each other", both)
	}
}

// stall delays everything that two processes send each other for a while.
func (p *peers) stall(a, b int, d time.Duration) {
	for _, l := range p.between(a, b) {
		l.freeze()
		defer l.thaw()
	}
	time.Sleep(d)
}

// waitConnected waits until every process is connected to every other.
func (p *peers) waitConnected(t *testing.T) {
	t.Helper()
	for from := range p.all {
		for to := range p.all {
			if from != to {
				what := fmt.Sprintf("%s is connected to %s", p.all[from].part.Name, p.all[to].part.Name)
				eventually(t, what, func() bool { return p.connected(t, from, to) })
			}
		}
	}
}

// restart kills a process and starts it again.
func (p *process) restart(t *testing.T, meanwhile func()) {
	t.Helper()
	p.kill()
	if meanwhile != nil {
		meanwhile()
	}
	time.Sleep(time.Second)
	p.start(t)
}

// replace starts a member that lost its files as etcd documents it: the cluster removes the
// member and adds another one in its place.
func (f *fleet) replace(t *testing.T, m *process) {
	t.Helper()
	old := f.memberID(t, m)
	change := func(what string, done func(id uint64) bool, do func(ctx context.Context) error) {
		t.Helper()
		var err error
		defer func() {
			if t.Failed() {
				t.Logf("%s %s: %v", what, m.part.Name, err)
			}
		}()
		eventually(t, what+" "+m.part.Name, func() bool {
			if members := f.listMembers(t); members == nil || done(members[m.part.URL]) {
				return members != nil
			}
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			defer cancel()
			err = do(ctx)
			return false
		})
	}
	m.restart(t, func() {
		removeAll(t, m.part.Dir)
		change("remove", func(id uint64) bool { return id == 0 }, func(ctx context.Context) error {
			_, err := f.etcd.MemberRemove(ctx, old)
			return err
		})
		change("add", func(id uint64) bool { return id != 0 }, func(ctx context.Context) error {
			_, err := f.etcd.MemberAdd(ctx, []string{m.part.URL})
			return err
		})
		m.part.Joins = true
	})
}

// membersLevel waits until all members have a leader and its entries.
func (f *fleet) membersLevel(t *testing.T) {
	t.Helper()
	eventually(t, "all members of etcd are level", func() bool {
		newest, oldest := uint64(0), uint64(math.MaxUint64)
		for _, endpoint := range f.endpoints {
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			status, err := f.etcd.Status(ctx, endpoint)
			cancel()
			if err != nil || status.Leader == 0 || len(status.Errors) > 0 {
				return false
			}
			newest, oldest = max(newest, status.RaftIndex), min(oldest, status.RaftAppliedIndex)
		}
		return newest-oldest < 100
	})
}

// elected returns the relay that publishes.
func (f *fleet) elected(t *testing.T) *process {
	t.Helper()
	var found *process
	eventually(t, "a relay is elected", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		resp, err := f.etcd.Get(ctx, DefaultStatePrefix+"relay")
		if err != nil || len(resp.Kvs) == 0 {
			return false
		}
		for _, relay := range f.relays {
			if relay.part.Name == string(resp.Kvs[0].Value) {
				found = relay
			}
		}
		return found != nil
	})
	return found
}

// tryPut writes one key below /registry/. It may fail: a member whose leader has just died does
// not answer for seven seconds.
func tryPut(ctx context.Context, etcd *clientv3.Client, key, value string) (revision int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	resp, err := etcd.Put(ctx, "/registry/"+key, value)
	if err != nil {
		return 0, err
	}
	return resp.Header.Revision, nil
}

// mustPut repeats a write until etcd accepts it.
func (f *fleet) mustPut(t *testing.T, key, value string) (revision int64) {
	t.Helper()
	eventually(t, "etcd takes "+key, func() (ok bool) {
		var err error
		revision, err = tryPut(t.Context(), f.etcd, key, value)
		return err == nil
	})
	return revision
}
