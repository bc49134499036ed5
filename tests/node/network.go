package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// The networks of the node. Each of them ends on this machine.
const (
	hostAddress = "10.251.0.1"
	nodeAddress = "10.251.0.2"
	podRange    = "10.252.0.0/24"
)

// network is a network namespace that is connected to this one.
type network struct{ name, link string }

func networkOf(name string) *network {
	return &network{name: name, link: "tri" + name[strings.LastIndexByte(name, '-')+1:]}
}

// newNetwork makes a namespace, with the routes of Pods and of Services.
func newNetwork(ctx context.Context, name, serviceRange string) (*network, error) {
	n := networkOf(name)
	for _, args := range [][]string{
		{"ip", "netns", "add", n.name},
		{"ip", "link", "add", n.link, "type", "veth", "peer", "name", "eth0", "netns", n.name},
		{"ip", "addr", "add", hostAddress + "/30", "dev", n.link},
		{"ip", "link", "set", n.link, "up"},
		{"ip", "-n", n.name, "addr", "add", nodeAddress + "/30", "dev", "eth0"},
		{"ip", "-n", n.name, "link", "set", "lo", "up"},
		{"ip", "-n", n.name, "link", "set", "eth0", "up"},
		{"ip", "-n", n.name, "route", "add", "default", "via", hostAddress},
		{"ip", "route", "add", podRange, "via", nodeAddress},
		{"ip", "route", "add", serviceRange, "via", nodeAddress},
		n.enter("sysctl", "-q", "-w", "net.ipv4.ip_forward=1", "net.ipv4.conf.all.route_localnet=1"),
		// The address of a Service that kube-proxy does not know yet is refused. Without that,
		// connections would go to and fro until they time out.
		n.enter("iptables", "-A", "FORWARD", "-d", serviceRange, "-j", "REJECT"),
		n.enter("iptables", "-A", "OUTPUT", "-d", serviceRange, "-j", "REJECT"),
	} {
		if err := run(ctx, args...); err != nil {
			return nil, errors.Join(err, n.close())
		}
	}
	return n, nil
}

// enter returns a command line that runs in the namespace. It keeps the mounts of this one:
// ip-netns(8) would mount /sys again, without cgroups.
func (n *network) enter(args ...string) []string {
	return append([]string{"nsenter", "--net=" + filepath.Join("/run/netns", n.name), "--"}, args...)
}

// close removes the namespace; its end of the pair of interfaces takes the other one along.
func (n *network) close() error {
	var errs []error
	if _, err := os.Stat(filepath.Join("/run/netns", n.name)); err == nil {
		errs = append(errs, run(context.Background(), "ip", "netns", "delete", n.name))
	}
	if n.linked() {
		// The kernel may be about to remove it with the namespace.
		if err := run(context.Background(), "ip", "link", "delete", n.link); err != nil && n.linked() {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

func (n *network) linked() bool {
	_, err := os.Stat(filepath.Join("/sys/class/net", n.link))
	return err == nil
}

func run(ctx context.Context, args ...string) error {
	out, err := exec.CommandContext(ctx, args[0], args[1:]...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return nil
}
