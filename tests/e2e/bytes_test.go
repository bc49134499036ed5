package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/client-go/kubernetes/scheme"

	"triune.dev/tests/cluster"
	"triune.dev/tests/parity"
)

// TestStoredBytes writes the same objects through kube-apiserver and the server under test
// and compares their etcds: keys, encodings, stored versions and contents.
func TestStoredBytes(t *testing.T) {
	full(t)
	reference := cluster.Run(t, cluster.Config{Topology: cluster.KubeAPIServer})
	config := swapConfig()
	config.PKI = reference.PKI // a CertificateSigningRequest contains the certificate of its user
	tested := cluster.Run(t, config)
	fill(t, reference)
	fill(t, tested)
	want, got := stored(t, reference), stored(t, tested)
	if len(want) < 200 {
		t.Fatalf("there are only %d keys to compare", len(want))
	}
	if diff := cmp.Diff(slices.Sorted(maps.Keys(want)), slices.Sorted(maps.Keys(got))); diff != "" {
		t.Errorf("keys (-kube-apiserver +tested):\n%s", diff)
	}
	differences := 0
	for _, key := range slices.Sorted(maps.Keys(want)) {
		have, ok := got[key]
		if !ok {
			continue
		}
		if diff := cmp.Diff(want[key], have); diff != "" {
			if differences++; differences <= 10 {
				t.Errorf("%s (-kube-apiserver +tested):\n%s", key, diff)
			}
		}
	}
	if differences > 10 {
		t.Errorf("%d values differ", differences)
	}
}

// value is a stored object, prepared for comparison.
type value struct {
	Encoding string // "json", or the type in the protobuf envelope
	Object   any
	Lease    bool
}

// stored reads all of etcd except for keys that are named after a process or a moment.
func stored(t *testing.T, c *cluster.Cluster) map[string]value {
	t.Helper()
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{c.EtcdURL}, DialTimeout: 10 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	all := map[string]value{}
	resp, err := client.Get(t.Context(), "", clientv3.WithPrefix())
	if err != nil {
		t.Fatal(err)
	}
	for _, kv := range resp.Kvs {
		key := string(kv.Key)
		if isOfAProcess(key) {
			continue
		}
		// Each value has its own normaliser, because placeholders are counted from 1.
		n := &parity.Normaliser{Now: time.Now()}
		v, err := decodeStored(n, kv.Value)
		if err != nil {
			t.Errorf("%s: %v", key, err)
			continue
		}
		v.Lease = kv.Lease != 0
		all[key] = v
	}
	return all
}

func isOfAProcess(key string) bool {
	return slices.ContainsFunc([]string{
		"/registry/masterleases/", "/registry/peerserverleases/", "/registry/services/specs/default/kubernetes", "/registry/leases/kube-system/", "compact_rev_key",
		"/triune/eventlog/", // the elected relay and the streams, which are not objects
		"/registry/services/endpoints/default/kubernetes", "/registry/endpointslices/default/kubernetes",
		"/registry/apiregistration.k8s.io/apiservices/v1.remote.all-kinds.triune.dev", // the time of the last check
		"/registry/events/default/", "/registry/events/all-kinds/web.", // depend on the timing of the server's controllers
		"/registry/configmaps/kube-system/",           // certificates
		"/registry/ranges/", "/registry/ipaddresses/", // depend on which addresses were free
	}, func(prefix string) bool { return strings.HasPrefix(key, prefix) }) && !strings.HasSuffix(key, "/10.99.0.77")
}

func decodeStored(n *parity.Normaliser, data []byte) (value, error) {
	if !bytes.HasPrefix(data, []byte("k8s\x00")) {
		o, err := n.JSON(data)
		return value{Encoding: "json", Object: o}, err
	}
	var envelope runtime.Unknown
	if err := envelope.Unmarshal(data[4:]); err != nil {
		return value{}, fmt.Errorf("read the envelope: %w", err)
	}
	v := value{Encoding: fmt.Sprintf("protobuf %s %s %q %q", envelope.APIVersion, envelope.Kind, envelope.ContentEncoding, envelope.ContentType)}
	o, _, err := protobuf.NewSerializer(scheme.Scheme, scheme.Scheme).Decode(data, nil, nil)
	if runtime.IsNotRegisteredError(err) { // client-go has no types of this group
		v.Object = len(envelope.Raw) > 0
		return v, nil
	}
	if err != nil {
		return v, err
	}
	encoded, err := json.Marshal(o)
	if err != nil {
		return v, err
	}
	v.Object, err = n.JSON(encoded)
	return v, err
}

// TestHalfDeadEtcd freezes etcd without breaking a connection. Requests that need it fail
// within their timeouts, nothing hangs for good, and everything recovers with etcd.
func TestHalfDeadEtcd(t *testing.T) {
	full(t)
	c := cluster.Run(t, swapConfig())
	k := newKubectl(t, c, "default")
	k.Run("create", "configmap", "before")
	etcd := c.Process(cluster.Etcd, 0)
	etcd.Pause()
	defer etcd.Resume()
	for _, args := range [][]string{
		{"create", "configmap", "during", "--request-timeout=3s"},
		{"get", "--raw", "/api/v1/namespaces/default/configmaps/before?timeout=2s"},
		{"get", "--raw", "/api/v1/namespaces/default/configmaps?timeout=2s"},
	} {
		begin := time.Now()
		if o := k.Try(args...); o.Code == 0 {
			t.Errorf("%v succeeded: %s", args, o.Stdout)
		}
		if took := time.Since(begin); took > 20*time.Second {
			t.Errorf("%v took %v", args, took)
		}
	}
	if o := k.Try("get", "--raw", "/readyz/etcd"); o.Code == 0 {
		t.Errorf("readyz/etcd while etcd hangs: %s", o.Stdout)
	}
	etcd.Resume()
	eventually(t, 2*patience, func(context.Context) error {
		if o := k.Try("create", "configmap", "after"); o.Code != 0 && !strings.Contains(o.Stderr, "already exists") {
			return fmt.Errorf("create: %s", o.Stderr)
		}
		return nil
	})
	k.Run("get", "configmap", "before", "after")
	ready := func(context.Context) error { // readyz of the tier in front, which checks etcd periodically
		if o := k.Try("get", "--raw", "/readyz"); o.Code != 0 {
			return fmt.Errorf("readyz: %s", o.Stderr)
		}
		return nil
	}
	eventually(t, patience, ready)

	etcd.Kill()
	if o := k.Try("create", "configmap", "killed", "--request-timeout=5s"); o.Code == 0 {
		t.Errorf("create without etcd succeeded: %s", o.Stdout)
	}
	if err := c.StartReplica(t.Context(), cluster.Etcd, 0); err != nil {
		t.Fatal(err)
	}
	eventually(t, 2*patience, func(context.Context) error {
		if o := k.Try("get", "configmap", "before", "after"); o.Code != 0 {
			return fmt.Errorf("get: %s", o.Stderr)
		}
		return nil
	})
	eventually(t, patience, ready)
}
