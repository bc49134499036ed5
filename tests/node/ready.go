package node

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"time"

	"triune.dev/tests/tools"
)

// apiService is the address of the Service "kubernetes", the first of the range.
const apiService = "10.0.0.1:443"

// readyTimeout bounds the time in which a node that has joined becomes ready.
const readyTimeout = 2 * time.Minute

// AwaitReady waits until the node is Ready and can be used. A node that is Ready may still lack
// its serving certificate, without which there are no logs and no exec, and kube-proxy its
// first rules, without which the address of a Service is refused. The error has the end of the
// node's logs.
func (n *Node) AwaitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	kubectl, err := tools.Path(ctx, "kubectl")
	if err != nil {
		return err
	}
	for {
		err := exec.CommandContext(ctx, kubectl, "--kubeconfig="+n.cluster.Kubeconfig, "wait", "--for=condition=Ready", "node/"+n.Name).Run()
		if err == nil {
			_, err = os.Stat(n.file("pki", "kubelet-server-current.pem"))
		}
		if err == nil {
			err = reach(ctx, apiService)
		}
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s is not ready: %w\n%s", n.Name, errors.Join(context.Cause(ctx), err), n.Logs(4<<10))
		case <-time.After(250 * time.Millisecond):
		}
	}
}

// reach connects to an address and closes the connection.
func reach(ctx context.Context, address string) error {
	dialer := net.Dialer{Timeout: time.Second}
	conn, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return err
	}
	return conn.Close()
}
