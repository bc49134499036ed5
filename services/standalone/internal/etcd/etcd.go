// Package etcd runs an etcd member in the process, for a triune without --etcd-servers.
//
// The member listens only on a Unix socket in a private directory: a TCP port, even on
// loopback, would give every user of the machine access to all objects. [Member.Client]
// calls the member without the socket.
package etcd

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"

	"triune.dev/shared/storage/etcdembed"
)

const (
	// A single member elects itself after an election timeout. With etcd's defaults of
	// 100 ms and 1 s that takes 0.9 s, with these 25 to 125 ms. With 10 and 100 ms it
	// takes 10 to 100 ms, but ticks are then a third of the work of an idle process.
	// An immediate election (raft's MsgTimeoutNow) is not possible: raft panics if the
	// log is compacted before raft has recorded what was applied.
	tick     = 25 * time.Millisecond
	election = 125 * time.Millisecond
	// startLimit bounds the replay of a large log after a crash.
	startLimit = 2 * time.Minute
	// quota is the size at which etcd stops taking writes: the largest that etcd
	// recommends.
	quota = 8 << 30
	// catchUpEntries is the number of entries that raft's log keeps in memory for slow
	// followers. There are none; etcd's 5,000 would be 50 MB of objects of 10 kB.
	catchUpEntries = 100
)

// Member is a running etcd.
type Member struct {
	// Client calls the member without gRPC. After Close it returns errors.
	Client *clientv3.Client
	// Endpoint is the address for clients that need one: a Unix socket.
	Endpoint string

	member  *etcdembed.Member
	socket  string      // directory of the socket
	serving atomic.Bool // between the end of Start and the beginning of Close
}

// Start runs a member with its data in dir and returns when it serves. The caller must Close
// it.
func Start(ctx context.Context, dir string) (*Member, error) {
	// The path of a Unix socket has at most 107 bytes, which dir may exceed.
	socket, err := os.MkdirTemp("", "triune-")
	if err != nil {
		return nil, fmt.Errorf("etcd: socket directory: %w", err)
	}
	m := &Member{socket: socket}
	if err := m.start(ctx, dir); err != nil {
		m.Close()
		return nil, fmt.Errorf("etcd in %s: %w", dir, err)
	}
	return m, nil
}

func (m *Member) start(ctx context.Context, dir string) error {
	listen := url.URL{Scheme: "unix", Path: filepath.Join(m.socket, "etcd.sock")}
	config := embed.NewConfig()
	config.Name = "triune"
	config.Dir = dir
	config.TickMs = uint(tick / time.Millisecond)
	config.ElectionMs = uint(election / time.Millisecond)
	config.QuotaBackendBytes = quota
	config.SnapshotCatchUpEntries = catchUpEntries
	config.ListenClientUrls = []url.URL{listen}
	// There are no peers. The advertised client URLs keep their default, because etcd
	// demands a host and a port; only clients that look for more members use them.
	config.ListenPeerUrls = nil
	config.InitialCluster = config.InitialClusterFromName(config.Name)
	fatal := make(chan error, 1)
	config.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.New(log{serving: &m.serving, fatal: fatal}))
	ctx, cancel := context.WithTimeoutCause(ctx, startLimit, fmt.Errorf("not ready after %v", startLimit))
	defer cancel()
	type outcome struct {
		member *etcdembed.Member
		err    error
	}
	started := make(chan outcome, 1)
	go func() {
		member, err := etcdembed.Start(ctx, config)
		started <- outcome{member, err}
	}()
	select {
	case err := <-fatal:
		return err
	case o := <-started:
		if o.err != nil {
			return o.err
		}
		m.member, m.Client = o.member, o.member.Client
	}
	select {
	case fatal <- nil: // from now on etcd may end the process, see log
	case err := <-fatal:
		return err
	}
	m.Endpoint = listen.String()
	m.serving.Store(true)
	return nil
}

// Failed returns a channel that receives an error if the member fails.
func (m *Member) Failed() <-chan error { return m.member.Failed() }

// Close waits for the client's calls in flight and stops the member. All acknowledged writes
// are on disk.
func (m *Member) Close() {
	m.serving.Store(false)
	if m.member != nil {
		m.member.Close()
	}
	_ = os.RemoveAll(m.socket) // a socket that remains is harmless
}
