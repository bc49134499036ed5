package faults

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"triune.dev/shared/process/pki"
	"triune.dev/tests/cluster"
	"triune.dev/tests/faults/watchspy"
	"triune.dev/tests/faults/wire"
)

// There is exactly one watch in etcd, however many replicas, resources, custom resources
// and watchers there are.
func TestEtcdWatchesDoNotGrow(t *testing.T) {
	dir := t.TempDir()
	p, err := pki.Ensure(filepath.Join(dir, "pki"), pki.Options{})
	if err != nil {
		t.Fatal(err)
	}
	outside := &cluster.Cluster{Dir: dir, PKI: p}
	t.Cleanup(func() { outside.Close() })
	etcdURL, err := outside.StartEtcd(t.Context(), "etcd")
	if err != nil {
		t.Fatal(err)
	}
	spy, err := watchspy.New(strings.TrimPrefix(etcdURL, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(spy.Close)
	t.Logf("-target=%s -replicas=%d", *target, *replicas)
	c := cluster.Run(t, cluster.Config{Topology: cluster.Topology(*target), Replicas: *replicas, ExternalNATS: true, EtcdURL: spy.URL(), PKI: p})
	h := client(t, c)
	awaitStream(t, c, h)

	empty := steady(t, h, etcdURL, spy)
	count := size(50, 500)
	defineMany(t, c, h, count)
	watchMany(t, c, h, count)
	awaitStream(t, c, h)
	full := steady(t, h, etcdURL, spy)
	if full > empty {
		t.Errorf("%d watches in etcd with %d custom resources, %d without", full, count, empty)
	}
	// The relay's watch is the only one. A reader watches etcd only until the stream is
	// proven, and nobody watches single keys: processes poll for compactions and for the
	// elected relay.
	var open []string
	for _, w := range spy.Open() {
		what := "single key"
		if w.End != "" {
			what = "all below"
		}
		open = append(open, fmt.Sprintf("%s %q", what, w.Key))
	}
	if full != 1 || !slices.Equal(open, []string{`all below "/registry/"`}) {
		t.Errorf("%d watches in etcd, want the relay's alone: %s", full, strings.Join(open, ", "))
	}
}

// steady waits until the number of watches is stable, logs them, and returns the number.
func steady(t *testing.T, h *http.Client, etcdURL string, spy *watchspy.Spy) int {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	read := func(name string) int {
		v, err := metric(ctx, h, etcdURL+"/metrics", name)
		if err != nil {
			t.Fatal(err)
		}
		return int(v)
	}
	const watchers, streams = "etcd_debugging_mvcc_watcher_total", "etcd_debugging_mvcc_watch_stream_total"
	last, same := -1, 0
	for same < 12 && ctx.Err() == nil {
		if now := read(watchers); now == last {
			same++
		} else {
			last, same = now, 0
		}
		pause(ctx, 500*time.Millisecond)
	}
	if ctx.Err() != nil {
		t.Fatalf("the number of watches does not settle, the last is %d", last)
	}
	ranges := map[string]int{}
	clients := map[string]bool{}
	for _, w := range spy.Open() {
		name := w.Key
		if w.End != "" {
			name += " …"
		}
		ranges[name]++
		clients[w.Client] = true
	}
	var all []string
	for name, n := range ranges {
		all = append(all, fmt.Sprintf("%4d × %s", n, name))
	}
	slices.Sort(all)
	t.Logf("etcd has %d watches on %d streams; %d connections watch\n%s", last, read(streams), len(clients), strings.Join(all, "\n"))
	return last
}

const group = "faults.triune.dev"

// defineMany creates CRDs and an object of each.
func defineMany(t *testing.T, c *cluster.Cluster, h *http.Client, count int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(8)
	for i := range count {
		g.Go(func() error {
			plural := fmt.Sprintf("things%d", i)
			crd := map[string]any{
				"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
				"metadata": map[string]any{"name": plural + "." + group},
				"spec": map[string]any{
					"group": group, "scope": "Cluster",
					"names": map[string]any{"plural": plural, "kind": fmt.Sprintf("Thing%d", i)},
					"versions": []any{map[string]any{"name": "v1", "served": true, "storage": true,
						"schema": map[string]any{"openAPIV3Schema": map[string]any{"type": "object"}}}},
				},
			}
			if err := post(ctx, h, c.URL+"/apis/apiextensions.k8s.io/v1/customresourcedefinitions", crd); err != nil {
				return err
			}
			object := map[string]any{"apiVersion": group + "/v1", "kind": fmt.Sprintf("Thing%d", i), "metadata": map[string]any{"name": "one"}}
			return post(ctx, h, c.URL+"/apis/"+group+"/v1/"+plural, object)
		})
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
}

// post creates an object, retrying until it is accepted.
func post(ctx context.Context, h *http.Client, target string, body any) error {
	for {
		req, err := wire.NewRequest(ctx, http.MethodPost, target, "application/json", body)
		if err != nil {
			return err
		}
		code, o, err := wire.Do(h, req)
		if err == nil && (code == http.StatusCreated || code == http.StatusConflict) {
			return nil
		}
		if ctx.Err() != nil {
			return fmt.Errorf("POST %s: %d %s: %w", target, code, o.Message, context.Cause(ctx))
		}
		pause(ctx, 100*time.Millisecond)
	}
}

// watchMany opens a watch of each custom resource and of some built-in resources at every
// server, until the test ends.
func watchMany(t *testing.T, c *cluster.Cluster, h *http.Client, count int) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	collections := []string{"/api/v1/pods", "/api/v1/configmaps", "/api/v1/secrets", "/api/v1/services", "/apis/apps/v1/deployments"}
	for i := range count {
		collections = append(collections, fmt.Sprintf("/apis/%s/v1/things%d", group, i))
	}
	var g errgroup.Group
	g.SetLimit(16)
	for _, server := range servers(c) {
		for _, collection := range collections {
			g.Go(func() error {
				query := url.Values{"watch": {"true"}, "resourceVersion": {"0"}}
				req, err := wire.NewRequest(ctx, http.MethodGet, server+collection+"?"+query.Encode(), "", nil)
				if err != nil {
					return err
				}
				resp, err := h.Do(req)
				if err != nil {
					return fmt.Errorf("watch %s: %w", collection, err)
				}
				t.Cleanup(func() { resp.Body.Close() })
				if resp.StatusCode != http.StatusOK {
					return fmt.Errorf("watch %s: %s", collection, resp.Status)
				}
				return nil
			})
		}
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
}
