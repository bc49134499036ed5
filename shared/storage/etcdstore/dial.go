package etcdstore

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
	"k8s.io/apiserver/pkg/server/egressselector"
	"k8s.io/apiserver/pkg/storage/storagebackend"
)

const (
	// Keepalives find a dead etcd within 40 s, as kube-apiserver's do.
	keepaliveTime    = 30 * time.Second
	keepaliveTimeout = 10 * time.Second
	// dialTimeout bounds Dial where the context does not.
	dialTimeout = 20 * time.Second
	// dialPause is the time between attempts of Dial to get a response.
	dialPause = 100 * time.Millisecond
	// dialAttempt bounds one attempt, so that a server that accepts connections but never
	// responds does not use up the time.
	dialAttempt = 5 * time.Second
)

// Dial connects to an etcd and returns once one of its servers has answered. It
// keeps trying until the context is done, or for 20 s; then the error is one
// line that names the servers and the last reason. Message sizes and keepalives
// are kube-apiserver's. The caller closes the client.
func Dial(ctx context.Context, c storagebackend.TransportConfig) (*clientv3.Client, error) {
	if len(c.ServerList) == 0 {
		return nil, errors.New("dial etcd: no servers are named")
	}
	tlsConfig, err := clientTLS(c)
	if err != nil {
		return nil, fmt.Errorf("dial etcd: %w", err)
	}
	options, err := dialOptions(c)
	if err != nil {
		return nil, fmt.Errorf("dial etcd: %w", err)
	}
	client, err := clientv3.New(clientv3.Config{
		Endpoints:            c.ServerList,
		TLS:                  tlsConfig,
		DialKeepAliveTime:    keepaliveTime,
		DialKeepAliveTimeout: keepaliveTimeout,
		DialOptions:          options,
		Logger:               clientLogger(),
	})
	if err != nil {
		return nil, fmt.Errorf("dial etcd at %s: %w", strings.Join(c.ServerList, ","), err)
	}
	if err := answered(ctx, client); err != nil {
		_ = client.Close()
		return nil, fmt.Errorf("dial etcd at %s: %w", strings.Join(c.ServerList, ","), err)
	}
	return client, nil
}

// answered waits for a response of etcd.
func answered(ctx context.Context, client *clientv3.Client) error {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	var last error
	for {
		err := ping(ctx, client)
		if err == nil {
			return nil
		}
		// An earlier error is more informative than the end of the context.
		if last == nil || ctx.Err() == nil {
			last = err
		}
		select {
		case <-ctx.Done():
			return reason(last)
		case <-time.After(dialPause):
		}
	}
}

// ping reads from any server, which need not have a quorum. It bypasses the client's
// retries, which would hide the reason of a failure.
func ping(ctx context.Context, client *clientv3.Client) error {
	ctx, cancel := context.WithTimeout(ctx, dialAttempt)
	defer cancel()
	_, err := etcdserverpb.NewKVClient(client.ActiveConnection()).Range(ctx, &etcdserverpb.RangeRequest{
		Key:          []byte("health"),
		Serializable: true,
		CountOnly:    true,
	})
	switch rpctypes.Error(err) {
	case rpctypes.ErrPermissionDenied, rpctypes.ErrUserEmpty:
		return nil // a refusal is an answer
	}
	return err
}

// reason returns the essential part of a gRPC error in one line.
func reason(err error) error {
	text := err.Error()
	if st, ok := status.FromError(err); ok {
		text = st.Message()
	}
	// "connection error: desc = \"transport: … dial tcp …: connection refused\""
	if _, desc, ok := strings.Cut(text, `desc = "`); ok {
		text = strings.TrimSuffix(desc, `"`)
	}
	for _, prefix := range []string{"transport: ", "Error while dialing: "} {
		text = strings.TrimPrefix(text, prefix)
	}
	return errors.New(strings.Join(strings.Fields(text), " "))
}

func dialOptions(c storagebackend.TransportConfig) ([]grpc.DialOption, error) {
	var options []grpc.DialOption
	if c.EgressLookup != nil {
		dial, err := c.EgressLookup(egressselector.Etcd.AsNetworkContext())
		if err != nil {
			return nil, fmt.Errorf("egress: %w", err)
		}
		if dial != nil {
			options = append(options, grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
				return dial(ctx, "tcp", hostOf(addr))
			}))
		}
	}
	return append(options, tracingOptions(c)...), nil
}

// hostOf returns host:port of an address that may be a URL.
func hostOf(addr string) string {
	if strings.Contains(addr, "//") {
		if u, err := url.Parse(addr); err == nil {
			return u.Host
		}
	}
	return addr
}
