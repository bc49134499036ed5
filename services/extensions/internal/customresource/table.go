package customresource

import (
	"context"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
)

// row is the entry of one CRD in the table. It is immutable.
type row struct {
	// crd is the CRD as last observed, conditions included.
	crd *apiextensionsv1.CustomResourceDefinition
	// generation serves it. Successive rows share it if their CRDs differ only in fields
	// that do not matter for serving, such as conditions and labels.
	generation *generation
}

// table maps the name of a CRD (plural.group) to its row.
//
// It is safe for concurrent use; get takes no lock.
type table struct {
	// build makes the serving of a generation at its first use.
	build buildFunc
	// drain bounds the time that a retired generation waits for its requests.
	drain time.Duration

	rows atomic.Pointer[map[string]*row]

	// writing serialises put, remove and close; it also guards closed.
	writing sync.Mutex
	closed  bool

	// closing is done when the table is closed; generations then wait for no requests.
	closing      context.Context
	startClosing context.CancelFunc
	// retiring counts the goroutines that retire generations.
	retiring sync.WaitGroup
}

func newTable(build buildFunc, drain time.Duration) *table {
	t := &table{build: build, drain: drain}
	t.closing, t.startClosing = context.WithCancel(context.Background())
	t.rows.Store(&map[string]*row{})
	return t
}

// get returns the row of the named CRD, or nil.
func (t *table) get(name string) *row {
	return (*t.rows.Load())[name]
}

// put makes crd the current definition under its name.
func (t *table) put(crd *apiextensionsv1.CustomResourceDefinition) {
	t.writing.Lock()
	defer t.writing.Unlock()
	if t.closed {
		return
	}
	old := t.get(crd.Name)
	next := &row{crd: crd}
	if old != nil && servesTheSame(old.generation.crd, crd) {
		next.generation = old.generation
	} else {
		next.generation = newGeneration(crd, t.build)
	}
	t.swapLocked(crd.Name, next)
	if old != nil && old.generation != next.generation {
		t.retireLocked(old.generation)
	}
}

// remove removes crd, unless the row has another UID because the CRD was created again.
func (t *table) remove(crd *apiextensionsv1.CustomResourceDefinition) {
	t.writing.Lock()
	defer t.writing.Unlock()
	old := t.get(crd.Name)
	if t.closed || old == nil || old.crd.UID != crd.UID {
		return
	}
	t.swapLocked(crd.Name, nil)
	t.retireLocked(old.generation)
}

// close retires all generations, without waiting for requests, and returns when all storage
// is destroyed. Later calls of put and remove do nothing.
func (t *table) close() {
	t.writing.Lock()
	t.closed = true
	rows := *t.rows.Swap(&map[string]*row{})
	for _, r := range rows {
		t.retireLocked(r.generation)
	}
	t.writing.Unlock()
	t.startClosing()
	t.retiring.Wait()
}

func (t *table) swapLocked(name string, next *row) {
	rows := maps.Clone(*t.rows.Load())
	if next == nil {
		delete(rows, name)
	} else {
		rows[name] = next
	}
	t.rows.Store(&rows)
}

func (t *table) retireLocked(g *generation) {
	t.retiring.Go(func() {
		ctx, cancel := context.WithTimeout(t.closing, t.drain)
		defer cancel()
		g.retire(ctx)
	})
}

// servesTheSame reports whether two states of a CRD have the same serving, which depends on
// the spec and the accepted names. A CRD with another UID has other objects.
func servesTheSame(a, b *apiextensionsv1.CustomResourceDefinition) bool {
	return a.UID == b.UID &&
		apiequality.Semantic.DeepEqual(&a.Spec, &b.Spec) &&
		apiequality.Semantic.DeepEqual(&a.Status.AcceptedNames, &b.Status.AcceptedNames)
}
