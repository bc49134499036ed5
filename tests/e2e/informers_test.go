package e2e

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"triune.dev/tests/cluster"
)

var configMaps = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}

// informerKind is a kind of informer in client-go.
type informerKind struct {
	name        string
	contentType string // "" leaves the choice to the client
	informer    func(t *testing.T, config *rest.Config, namespace string, resync time.Duration) cache.SharedIndexInformer
}

func informerKinds() []informerKind {
	typed := func(t *testing.T, config *rest.Config, namespace string, resync time.Duration) cache.SharedIndexInformer {
		client := kubernetes.NewForConfigOrDie(config)
		return informers.NewSharedInformerFactoryWithOptions(client, resync, informers.WithNamespace(namespace)).Core().V1().ConfigMaps().Informer()
	}
	partial := func(t *testing.T, config *rest.Config, namespace string, resync time.Duration) cache.SharedIndexInformer {
		client := metadata.NewForConfigOrDie(config)
		return metadatainformer.NewFilteredSharedInformerFactory(client, resync, namespace, nil).ForResource(configMaps).Informer()
	}
	return []informerKind{
		{"typed json", "application/json", typed},
		{"typed protobuf", "application/vnd.kubernetes.protobuf", typed},
		{"metadata", "", partial},
		{"dynamic", "", func(t *testing.T, config *rest.Config, namespace string, resync time.Duration) cache.SharedIndexInformer {
			client := dynamic.NewForConfigOrDie(config)
			return dynamicinformer.NewFilteredDynamicSharedInformerFactory(client, resync, namespace, nil).ForResource(configMaps).Informer()
		}},
	}
}

// seen records the calls of an informer's handlers.
type seen struct {
	mu      sync.Mutex
	added   []string
	updated map[string]int // changes of an object
	resyncs map[string]int // calls without a change
	deleted []string
}

func (s *seen) handlers() cache.ResourceEventHandlerFuncs {
	name := func(o any) string {
		if tombstone, ok := o.(cache.DeletedFinalStateUnknown); ok {
			o = tombstone.Obj
		}
		m, err := meta.Accessor(o)
		if err != nil {
			return fmt.Sprintf("%T", o)
		}
		return m.GetName()
	}
	version := func(o any) string {
		m, err := meta.Accessor(o)
		if err != nil {
			return ""
		}
		return m.GetResourceVersion()
	}
	locked := func(f func()) { s.mu.Lock(); defer s.mu.Unlock(); f() }
	return cache.ResourceEventHandlerFuncs{
		AddFunc: func(o any) { locked(func() { s.added = append(s.added, name(o)) }) },
		UpdateFunc: func(before, after any) {
			locked(func() {
				if version(before) == version(after) {
					s.resyncs[name(after)]++
				} else {
					s.updated[name(after)]++
				}
			})
		},
		DeleteFunc: func(o any) { locked(func() { s.deleted = append(s.deleted, name(o)) }) },
	}
}

// until waits until check returns true.
func (s *seen) until(t *testing.T, what string, check func() bool) {
	t.Helper()
	eventually(t, patience, func(context.Context) error {
		s.mu.Lock()
		defer s.mu.Unlock()
		if check() {
			return nil
		}
		return fmt.Errorf("waiting for %s: added %v, updated %v, resynced %v, deleted %v", what, s.added, s.updated, s.resyncs, s.deleted)
	})
}

func TestInformers(t *testing.T) {
	c := server(t)
	for _, f := range informerKinds() {
		t.Run(f.name, func(t *testing.T) {
			ns := newNamespace(t, c)
			client := clientset(t, c).CoreV1().ConfigMaps(ns)
			create(t, client, "before")
			s := startInformer(t, c, f, ns)
			s.until(t, "the first list", func() bool { return slices.Equal(s.added, []string{"before"}) })

			create(t, client, "after")
			s.until(t, "an object that is added", func() bool { return slices.Contains(s.added, "after") })
			if _, err := client.Patch(t.Context(), "after", "application/merge-patch+json", []byte(`{"metadata":{"labels":{"a":"b"}}}`), metav1.PatchOptions{}); err != nil {
				t.Fatal(err)
			}
			s.until(t, "an object that is changed", func() bool { return s.updated["after"] == 1 })
			s.until(t, "a resync", func() bool { return s.resyncs["before"] > 0 })

			t.Run("a connection is cut", func(t *testing.T) {
				c.Front.Cut()
				createAnyway(t, client, "cut")
				s.until(t, "an object after the cut", func() bool { return slices.Contains(s.added, "cut") })
			})
			if err := client.Delete(t.Context(), "before", metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			s.until(t, "an object that is deleted", func() bool { return slices.Equal(s.deleted, []string{"before"}) })
			s.mu.Lock()
			defer s.mu.Unlock()
			if !slices.Equal(s.added, []string{"before", "after", "cut"}) || s.updated["after"] != 1 {
				t.Errorf("events were lost or repeated: added %v, updated %v", s.added, s.updated)
			}
		})
	}
}

// TestInformersOutliveRestarts restarts every serving tier while informers run: they
// reconnect and miss nothing.
func TestInformersOutliveRestarts(t *testing.T) {
	c := server(t)
	ns := newNamespace(t, c)
	client := clientset(t, c).CoreV1().ConfigMaps(ns)
	all := map[string]*seen{}
	for _, f := range informerKinds() {
		all[f.name] = startInformer(t, c, f, ns)
	}
	want := 0
	for _, tier := range c.ServingTiers() {
		for i := 0; c.Process(tier, i) != nil; i++ {
			if err := c.Restart(t.Context(), tier, i); err != nil {
				t.Fatal(err)
			}
			name := fmt.Sprintf("after-%s-%d", tier, i)
			createAnyway(t, client, name)
			want++
			for kind, s := range all {
				s.until(t, kind+" after the restart of "+string(tier), func() bool { return len(s.added) == want })
			}
		}
	}
}

func startInformer(t *testing.T, c *cluster.Cluster, f informerKind, ns string) *seen {
	t.Helper()
	config := restConfig(t, c)
	config.ContentType = f.contentType
	informer := f.informer(t, config, ns, time.Second)
	s := &seen{updated: map[string]int{}, resyncs: map[string]int{}}
	if _, err := informer.AddEventHandler(s.handlers()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { informer.RunWithContext(ctx) })
	t.Cleanup(func() { cancel(); running.Wait() })
	syncing, stop := context.WithTimeout(ctx, patience)
	defer stop()
	if !cache.WaitForCacheSync(syncing.Done(), informer.HasSynced) {
		t.Fatalf("%s: not synced within %v", f.name, patience)
	}
	return s
}

type creator interface {
	Create(context.Context, *corev1.ConfigMap, metav1.CreateOptions) (*corev1.ConfigMap, error)
}

func create(t *testing.T, client creator, name string) {
	t.Helper()
	if _, err := client.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// createAnyway retries until it succeeds, because the client's connections may have been
// broken without its knowledge.
func createAnyway(t *testing.T, client creator, name string) {
	t.Helper()
	eventually(t, patience, func(ctx context.Context) error {
		_, err := client.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) { // the connection broke after the write
			return nil
		}
		return err
	})
}
