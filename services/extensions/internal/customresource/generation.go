package customresource

import (
	"context"
	"errors"
	"fmt"
	"sync"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
)

// errRetired means that a generation accepts no more requests because its CRD has changed
// or was deleted. The caller looks up the CRD again.
var errRetired = errors.New("the definition has changed")

// buildFunc makes the serving of a CRD.
type buildFunc func(*apiextensionsv1.CustomResourceDefinition) (*serving, error)

// use is the kind of request that uses a generation.
type use int

const (
	// short requests finish before a generation is destroyed.
	short use = iota
	// watch requests are ended after the short ones have finished.
	watch
)

// generation owns the serving of a CRD from its first request until the CRD changes. It is
// safe for concurrent use.
type generation struct {
	crd   *apiextensionsv1.CustomResourceDefinition
	build buildFunc

	// ending is done when watches must end, after the last short request.
	ending context.Context
	end    context.CancelFunc

	// building is held while serving is built, so that it is built once and only requests
	// of this CRD wait.
	building sync.Mutex

	mu sync.Mutex
	// serving is nil before the first use; it is set once.
	serving *serving
	// inUse counts the requests between acquire and release, by use.
	inUse   [2]int
	retired bool
	// idle holds a channel for each use, which is closed when the generation is retired
	// and has no more requests of that use.
	idle [2]chan struct{}
}

func newGeneration(crd *apiextensionsv1.CustomResourceDefinition, build buildFunc) *generation {
	g := &generation{crd: crd, build: build}
	for u := range g.idle {
		g.idle[u] = make(chan struct{})
	}
	g.ending, g.end = context.WithCancel(context.Background())
	return g
}

// acquire returns the serving of the CRD, which it builds if necessary. The storage is not
// destroyed before release is called, exactly once. The error is errRetired or that of the
// build; the next request builds again.
func (g *generation) acquire(u use) (s *serving, release func(), err error) {
	if !g.enter(u) {
		return nil, nil, errRetired
	}
	release = func() { g.leave(u) }
	if s := g.current(); s != nil {
		return s, release, nil
	}
	g.building.Lock()
	defer g.building.Unlock()
	if s := g.current(); s != nil {
		return s, release, nil
	}
	s, err = g.build(g.crd)
	if err != nil {
		release()
		return nil, nil, fmt.Errorf("serve custom resource definition %s: %w", g.crd.Name, err)
	}
	g.mu.Lock()
	g.serving = s
	g.mu.Unlock()
	return s, release, nil
}

// retire refuses new requests, waits for short ones, ends the watches, waits for them, and
// destroys the storage. It stops waiting when ctx is done. Call it once.
func (g *generation) retire(ctx context.Context) {
	g.mu.Lock()
	g.retired = true
	for u, n := range g.inUse {
		if n == 0 {
			close(g.idle[u])
		}
	}
	g.mu.Unlock()

	await(ctx, g.idle[short])
	g.end()
	await(ctx, g.idle[watch])

	// Wait for a build in progress, whose result must be destroyed as well.
	g.building.Lock()
	defer g.building.Unlock()
	if s := g.current(); s != nil {
		s.destroy()
	}
}

func await(ctx context.Context, done <-chan struct{}) {
	select {
	case <-done:
	case <-ctx.Done():
	}
}

func (g *generation) current() *serving {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.serving
}

func (g *generation) enter(u use) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.retired {
		return false
	}
	g.inUse[u]++
	return true
}

func (g *generation) leave(u use) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.inUse[u]--
	// This happens once, since no request enters a retired generation.
	if g.retired && g.inUse[u] == 0 {
		close(g.idle[u])
	}
}
