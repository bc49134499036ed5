package traffic

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
)

const (
	namespace = "load"
	// kept bounds the number of objects of a kind.
	kept = 50
	// watchers is the number of watchers of each kind.
	watchers = 5
	// pace is the interval between two rounds of requests for a kind. A round is a create,
	// a get, a list and a delete.
	pace = 100 * time.Millisecond
	// established bounds the time until a CRD is served.
	established = time.Minute
)

var (
	namespaces  = schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}
	configMaps  = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
	definitions = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
	samples     = schema.GroupVersionResource{Group: "load.triune.dev", Version: "v1", Resource: "samples"}
)

// Generator sends traffic to a server.
type Generator struct {
	client           dynamic.Interface
	requests, failed atomic.Int64
	events           atomic.Int64
}

// New returns a generator without a client-side rate limit.
func New(config *rest.Config) (*Generator, error) {
	config = rest.CopyConfig(config)
	config.QPS = -1
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make a client: %w", err)
	}
	return &Generator{client: client}, nil
}

// String formats the numbers of requests and events so far.
func (g *Generator) String() string {
	return fmt.Sprintf("%d requests, %d of them failed; %d watch events", g.requests.Load(), g.failed.Load(), g.events.Load())
}

// Run creates the namespace and the CRD that it uses if they do not exist, and sends
// traffic until ctx ends, which is not an error. Failed requests are counted and otherwise
// ignored, so that traffic continues while servers are down. Objects remain;
// [Generator.Clean] removes them.
func (g *Generator) Run(ctx context.Context) error {
	if err := g.prepare(ctx); err != nil {
		return err
	}
	var running sync.WaitGroup
	defer running.Wait()
	for kind, resource := range map[string]schema.GroupVersionResource{"ConfigMap": configMaps, "Sample": samples} {
		objects := g.client.Resource(resource).Namespace(namespace)
		running.Go(func() { g.write(ctx, objects, resource.GroupVersion().String(), kind) })
		for range watchers {
			running.Go(func() { g.watch(ctx, objects) })
		}
	}
	return nil
}

// Clean removes everything that Run created.
func (g *Generator) Clean(ctx context.Context) error {
	return errors.Join(
		g.client.Resource(definitions).Delete(ctx, samples.GroupResource().String(), metav1.DeleteOptions{}),
		g.client.Resource(namespaces).Delete(ctx, namespace, metav1.DeleteOptions{}),
	)
}

func (g *Generator) prepare(ctx context.Context) error {
	for resource, object := range map[schema.GroupVersionResource]map[string]any{
		namespaces: {"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": namespace}},
		definitions: {
			"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
			"metadata": map[string]any{"name": samples.GroupResource().String()},
			"spec": map[string]any{
				"group": samples.Group, "scope": "Namespaced",
				"names": map[string]any{"kind": "Sample", "listKind": "SampleList", "plural": samples.Resource, "singular": "sample"},
				"versions": []any{map[string]any{
					"name": samples.Version, "served": true, "storage": true,
					"schema": map[string]any{"openAPIV3Schema": map[string]any{"type": "object", "x-kubernetes-preserve-unknown-fields": true}},
				}},
			},
		},
	} {
		_, err := g.client.Resource(resource).Create(ctx, &unstructured.Unstructured{Object: object}, metav1.CreateOptions{})
		if err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("create %s: %w", resource.Resource, err)
		}
	}
	ctx, cancel := context.WithTimeoutCause(ctx, established, fmt.Errorf("not within %v", established))
	defer cancel()
	tick := time.NewTicker(pace)
	defer tick.Stop()
	for {
		_, err := g.client.Resource(samples).Namespace(namespace).List(ctx, metav1.ListOptions{Limit: 1})
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for %s to be served: %w: %w", samples.GroupResource(), context.Cause(ctx), err)
		case <-tick.C:
		}
	}
}

func (g *Generator) write(ctx context.Context, objects dynamic.ResourceInterface, version, kind string) {
	tick := time.NewTicker(pace)
	defer tick.Stop()
	for i := 0; ; i++ {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		name := "load-" + strconv.Itoa(i%kept)
		_, err := objects.Create(ctx, &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": version, "kind": kind, "metadata": map[string]any{"name": name},
			"data": map[string]any{"i": strconv.Itoa(i)},
		}}, metav1.CreateOptions{})
		g.count(ctx, err)
		_, err = objects.Get(ctx, name, metav1.GetOptions{})
		g.count(ctx, err)
		_, err = objects.List(ctx, metav1.ListOptions{})
		g.count(ctx, err)
		err = objects.Delete(ctx, "load-"+strconv.Itoa((i+kept/2)%kept), metav1.DeleteOptions{})
		if !apierrors.IsNotFound(err) { // expected in the first round
			g.count(ctx, err)
		}
	}
}

// watch opens a watch again whenever it ends.
func (g *Generator) watch(ctx context.Context, objects dynamic.ResourceInterface) {
	for ctx.Err() == nil {
		w, err := objects.Watch(ctx, metav1.ListOptions{})
		g.count(ctx, err)
		if err != nil {
			select {
			case <-ctx.Done():
			case <-time.After(pace):
			}
			continue
		}
		for range w.ResultChan() {
			g.events.Add(1)
		}
	}
}

// count counts a request, unless the end of the traffic interrupted it.
func (g *Generator) count(ctx context.Context, err error) {
	if ctx.Err() != nil {
		return
	}
	g.requests.Add(1)
	if err != nil {
		g.failed.Add(1)
	}
}
