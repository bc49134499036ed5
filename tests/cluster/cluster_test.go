package cluster

import (
	"context"
	"io"
	"net"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

func TestReferenceServesAndRestartsWithItsData(t *testing.T) {
	c := Run(t, Config{Topology: KubeAPIServer})
	config, err := c.REST()
	if err != nil {
		t.Fatal(err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	uid := func() string {
		ns, err := client.CoreV1().Namespaces().Get(t.Context(), "kube-system", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return string(ns.UID)
	}
	before := uid()
	if err := c.Restart(t.Context(), Tier(KubeAPIServer), 0); err != nil {
		t.Fatal(err)
	}
	if after := uid(); after != before {
		t.Errorf("kube-system has uid %s after a restart, %s before", after, before)
	}
}

// TestToolsOfAConfig checks the list of tools that are built before the timeout of the
// start begins.
func TestToolsOfAConfig(t *testing.T) {
	for name, test := range map[string]struct {
		config Config
		want   []string
	}{
		"reference":                {Config{Topology: KubeAPIServer}, []string{"kube-apiserver", "etcd"}},
		"reference on an etcd":     {Config{Topology: KubeAPIServer, EtcdURL: "http://127.0.0.1:1"}, []string{"kube-apiserver"}},
		"triune":                   {Config{Topology: Triune}, nil},
		"triune beside its stores": {Config{Topology: Triune, ExternalEtcd: true, ExternalNATS: true}, []string{"etcd", "nats-server"}},
		"tiers":                    {Config{Topology: Tiers}, []string{"etcd", "nats-server"}},
		"tiers on an etcd":         {Config{Topology: Tiers, EtcdURL: "http://127.0.0.1:1"}, []string{"nats-server"}},
		"an etcd for each tier":    {Config{Topology: Tiers, EtcdPerTier: true}, []string{"etcd", "nats-server"}},
	} {
		if diff := cmp.Diff(test.want, test.config.tools()); diff != "" {
			t.Errorf("%s: (-want +got):\n%s", name, diff)
		}
	}
}

func TestProcessThatEndsAtStartIsReportedWithItsLog(t *testing.T) {
	p := &Process{Name: "sh", Path: "/bin/sh", Args: []string{"-c", "echo no such thing; exit 3"}, LogFile: t.TempDir() + "/log"}
	err := p.Start(t.Context(), func(context.Context) error { return io.EOF })
	if err == nil || !strings.Contains(err.Error(), "no such thing") || !strings.Contains(err.Error(), "exit status 3") {
		t.Fatalf("got %v, want an error with the exit status and the log", err)
	}
}

func TestBalancerPassesOverADeadBackendAndCuts(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	echo, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer echo.Close()
	go func() {
		for {
			c, err := echo.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				_, _ = io.Copy(c, c)
			}()
		}
	}()
	b, err := NewBalancer([]string{"127.0.0.1:1", echo.Addr().String()})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	var conns []net.Conn
	for range 4 {
		c, err := net.Dial("tcp", b.Addr())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := c.Write([]byte("ping")); err != nil {
			t.Fatal(err)
		}
		buf := make([]byte, 4)
		if _, err := io.ReadFull(c, buf); err != nil || string(buf) != "ping" {
			t.Fatalf("echo: %q, %v", buf, err)
		}
		conns = append(conns, c)
	}
	b.Cut()
	for _, c := range conns {
		if _, err := c.Read(make([]byte, 1)); err == nil {
			t.Error("a connection outlived Cut")
		}
	}
}
