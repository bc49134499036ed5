// Package etcd runs an etcd member inside the process, for a Triune that has no
// cluster of its own to talk to.
//
// The member listens on a Unix socket in a private directory and nowhere else: a
// TCP port, even on loopback, would hand every object to every user of the
// machine. Our own client does not use the socket; it calls the member directly.
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
	// A single member elects itself; the only thing to wait for is its own tick.
	// With etcd's defaults of 100 ms and 1 s that is 0.9 s of a start, with these
	// 25 to 125 ms. With 10 and 100 ms it is 10 to 100 ms, but then ticks are a third
	// of what an idle process does. Telling it to stand for election at once (raft's
	// MsgTimeoutNow) was tried: raft panics if it has not noted yet what was applied
	// from a log that is compacted meanwhile.
	tick     = 25 * time.Millisecond
	election = 125 * time.Millisecond
	// startLimit bounds the replay of a large log after a crash.
	startLimit = 2 * time.Minute
	// quota is where etcd stops taking writes: what etcd recommends as the most.
	quota = 8 << 30
	// catchUp is how many entries raft's log keeps in memory for followers that are
	// slow. There are none; etcd's 5,000 would be 50 MB of objects of 10 kB.
	catchUp = 100
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

// Start runs a member with its data below dir and returns when it serves. The
// caller must Close it.
func Start(ctx context.Context, dir string) (*Member, error) {
	// A Unix socket's path is at most 107 bytes, and dir can be anywhere.
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
	config.SnapshotCatchUpEntries = catchUp
	config.ListenClientUrls = []url.URL{listen}
	// It has no peers, and the address it advertises, which etcd wants to be a
	// host and port, is for peers and for clients that look for more members.
	config.ListenPeerUrls = nil
	config.InitialCluster = config.InitialClusterFromName(config.Name)
	config.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.New(log{serving: &m.serving}))
	ctx, cancel := context.WithTimeoutCause(ctx, startLimit, fmt.Errorf("not ready after %v", startLimit))
	defer cancel()
	member, err := etcdembed.Start(ctx, config)
	if err != nil {
		return err
	}
	m.member, m.Client = member, member.Client
	m.Endpoint = listen.String()
	m.serving.Store(true)
	return nil
}

// Failed delivers an error when the member dies by itself.
func (m *Member) Failed() <-chan error { return m.member.Failed() }

// Close waits for the client's calls in flight and stops the member. Everything it
// has acknowledged is on disk.
func (m *Member) Close() {
	m.serving.Store(false)
	if m.member != nil {
		m.member.Close()
	}
	_ = os.RemoveAll(m.socket) // the socket of a dead member is harmless
}
