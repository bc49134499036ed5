package deploy

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"
)

// ledger has the acknowledged writes, and the events of each watcher.
type ledger struct {
	mu       sync.Mutex
	written  map[string]bool
	failed   int
	watchers []*watcher
}

// watcher has the events of a watch, over all its connections.
type watcher struct {
	seen  map[string]int
	order []uint64 // resource versions in their order of arrival
	ended error
}

// acknowledged returns the number of acknowledged writes.
func (l *ledger) acknowledged() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.written)
}

// write creates objects one after another until ctx ends.
func (l *ledger) write(ctx context.Context, client kubernetes.Interface, writer int) {
	for i := 0; ctx.Err() == nil; i++ {
		name := fmt.Sprintf("w%d-%d", writer, i)
		attempt, cancel := context.WithTimeout(ctx, 5*time.Second)
		_, err := client.CoreV1().ConfigMaps("ledger").Create(attempt, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
		cancel()
		l.mu.Lock()
		if err == nil {
			l.written[name] = true
		} else {
			l.failed++
		}
		l.mu.Unlock()
		if err != nil && !apierrors.IsAlreadyExists(err) {
			select {
			case <-ctx.Done():
			case <-time.After(50 * time.Millisecond): // pause while no server answers
			}
		}
	}
}

// watch records every event until ctx ends. Like any client of Kubernetes it resumes a
// broken watch at the last version that it has seen.
func (l *ledger) watch(ctx context.Context, client kubernetes.Interface, from string) error {
	seen := &watcher{seen: map[string]int{}}
	l.watchers = append(l.watchers, seen)
	w, err := watchtools.NewRetryWatcherWithContext(ctx, from, &cache.ListWatch{
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return client.CoreV1().ConfigMaps("ledger").Watch(ctx, o)
		},
	})
	if err != nil {
		return err
	}
	go func() {
		for event := range w.ResultChan() {
			l.mu.Lock()
			switch object := event.Object.(type) {
			case *corev1.ConfigMap:
				if event.Type == watch.Added {
					seen.seen[object.Name]++
					version, _ := strconv.ParseUint(object.ResourceVersion, 10, 64)
					seen.order = append(seen.order, version)
				}
			default:
				seen.ended = fmt.Errorf("a watch ended with %s: %v", event.Type, event.Object)
			}
			l.mu.Unlock()
		}
	}()
	return nil
}

// settled returns an error unless all acknowledged writes are stored and all watchers have
// received them.
func (l *ledger) settled(ctx context.Context, client kubernetes.Interface) error {
	stored := map[string]bool{}
	list, err := client.CoreV1().ConfigMaps("ledger").List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for _, m := range list.Items {
		if strings.HasPrefix(m.Name, "w") {
			stored[m.Name] = true
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	var errs []error
	for name := range l.written {
		if !stored[name] {
			errs = append(errs, fmt.Errorf("%s was acknowledged and is lost", name))
		}
	}
	for i, w := range l.watchers {
		errs = append(errs, w.ended)
		for name := range stored {
			if n := w.seen[name]; n != 1 {
				errs = append(errs, fmt.Errorf("watcher %d has seen %s %d times", i, name, n))
			}
		}
		for j := 1; j < len(w.order); j++ {
			if w.order[j] <= w.order[j-1] {
				errs = append(errs, fmt.Errorf("watcher %d has seen revision %d after %d", i, w.order[j], w.order[j-1]))
			}
		}
	}
	if len(errs) > 10 {
		errs = errs[:10]
	}
	return errors.Join(errs...)
}
