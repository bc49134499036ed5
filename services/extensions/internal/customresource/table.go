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

// row is what the table knows of one CRD. It is immutable.
type row struct {
	// crd is the CRD as last observed, conditions included.
	crd *apiextensionsv1.CustomResourceDefinition
	// generation serves it. Rows whose CRDs differ only in what does not
	// matter for serving (conditions, labels) share it.
	generation *generation
}

// table maps the name of a CRD (plural.group) to its row.
//
// Reading is lock-free and safe from any goroutine; the rows seen by one get are
// a consistent snapshot. Writers are serialised.
type table struct {
	// build makes what a generation serves with; it runs at first use.
	build buildFunc
	// drain bounds how long a retired generation waits for its requests.
	drain time.Duration

	rows atomic.Pointer[map[string]*row]

	// writing serialises put, remove and close; it also guards closed.
	writing sync.Mutex
	closed  bool

	// closing is done when the table is closed: nobody is waited for any more.
	closing      context.Context
	startClosing context.CancelFunc
	// retiring counts the goroutines that tear generations down.
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

// remove forgets crd if it is still the one with this UID: a CRD that was
// deleted and created again keeps its new row.
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

// close retires everything at once, without waiting for requests to finish, and
// returns when all storage is destroyed. Later writes are ignored.
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

// servesTheSame tells whether two observations of a CRD lead to the same serving:
// it is built from the spec and the accepted names, and objects of another UID
// are other objects.
func servesTheSame(a, b *apiextensionsv1.CustomResourceDefinition) bool {
	return a.UID == b.UID &&
		apiequality.Semantic.DeepEqual(&a.Spec, &b.Spec) &&
		apiequality.Semantic.DeepEqual(&a.Status.AcceptedNames, &b.Status.AcceptedNames)
}
