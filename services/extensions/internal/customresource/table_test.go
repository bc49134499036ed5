package customresource

import (
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/types"
)

func buildNothing(crd *apiextensionsv1.CustomResourceDefinition) (*serving, error) {
	return &serving{crd: crd, schemas: newSchemas(crd), typeConverter: newLazyTypeConverter(crd), versions: map[string]*version{}}, nil
}

func acquire(t *testing.T, g *generation, u use) (*serving, func()) {
	t.Helper()
	s, release, err := g.acquire(u)
	if err != nil {
		t.Fatalf("acquire: %v", err)
	}
	return s, release
}

func isDestroyed(s *serving) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.destroyed
}

func TestTableKeepsTheGenerationWhileServingIsTheSame(t *testing.T) {
	tests := []struct {
		name   string
		change func(*apiextensionsv1.CustomResourceDefinition)
		same   bool
	}{
		{"a condition", conditions(apiextensionsv1.Established, apiextensionsv1.Terminating), true},
		{"a label", func(c *apiextensionsv1.CustomResourceDefinition) { c.Labels = map[string]string{"a": "b"} }, true},
		{"stored versions", func(c *apiextensionsv1.CustomResourceDefinition) { c.Status.StoredVersions = []string{"v1"} }, true},
		{"the spec", func(c *apiextensionsv1.CustomResourceDefinition) { c.Spec.Versions[1].Served = false }, false},
		{"the accepted names", func(c *apiextensionsv1.CustomResourceDefinition) {
			c.Status.AcceptedNames.ShortNames = []string{"wd"}
		}, false},
		{"another CRD of the same name", func(c *apiextensionsv1.CustomResourceDefinition) { c.UID = types.UID("2") }, false},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			table := newTable(buildNothing, time.Minute)
			defer table.close()
			table.put(widgets())
			before := table.get("widgets.example.com")
			changed := widgets(test.change)
			table.put(changed)
			after := table.get("widgets.example.com")
			if after.crd != changed {
				t.Error("the row does not hold the CRD that was put last")
			}
			if got := before.generation == after.generation; got != test.same {
				t.Errorf("same generation: %v, want %v", got, test.same)
			}
		})
	}
}

// A late deletion event must not remove a CRD that was created again.
func TestTableRemovesOnlyTheCRDItIsToldOf(t *testing.T) {
	table := newTable(buildNothing, time.Minute)
	defer table.close()
	first := widgets()
	second := widgets(func(c *apiextensionsv1.CustomResourceDefinition) { c.UID = types.UID("2") })
	table.put(first)
	table.put(second)
	table.remove(first)
	if r := table.get("widgets.example.com"); r == nil || r.crd != second {
		t.Fatal("the second CRD is gone")
	}
	table.remove(second)
	if table.get("widgets.example.com") != nil {
		t.Fatal("the second CRD is still there")
	}
}

func TestGenerationBuildsOnceAndForgetsErrors(t *testing.T) {
	var builds atomic.Int32
	fail := errors.New("no storage")
	g := newGeneration(widgets(), func(crd *apiextensionsv1.CustomResourceDefinition) (*serving, error) {
		if builds.Add(1) == 1 {
			return nil, fail
		}
		return buildNothing(crd)
	})
	if _, _, err := g.acquire(short); !errors.Is(err, fail) {
		t.Fatalf("first acquire: %v, want the error of the build", err)
	}
	a, releaseA := acquire(t, g, short)
	b, releaseB := acquire(t, g, watch)
	if a != b || builds.Load() != 2 {
		t.Errorf("%d builds, the same serving: %v", builds.Load(), a == b)
	}
	releaseA()
	releaseB()
	g.retire(t.Context())
	if !isDestroyed(a) {
		t.Error("not destroyed")
	}
}

// A retired generation refuses new requests, waits for short ones, ends its watches, and then
// destroys its storage, in this order.
func TestRetiringGenerationDrains(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := newTable(buildNothing, time.Minute)
		table.put(widgets())
		old := table.get("widgets.example.com").generation
		s, releaseShort := acquire(t, old, short)
		_, releaseWatch := acquire(t, old, watch)

		table.put(widgets(func(c *apiextensionsv1.CustomResourceDefinition) { c.Spec.Versions[1].Served = false }))
		synctest.Wait()
		if _, _, err := old.acquire(short); !errors.Is(err, errRetired) {
			t.Errorf("acquire after retirement: %v, want %v", err, errRetired)
		}
		if old.ending.Err() != nil {
			t.Error("watches ended before the short request")
		}
		releaseShort()
		synctest.Wait()
		if old.ending.Err() == nil {
			t.Error("watches have not been ended")
		}
		if isDestroyed(s) {
			t.Error("storage destroyed under a watch")
		}
		releaseWatch()
		synctest.Wait()
		if !isDestroyed(s) {
			t.Error("storage not destroyed")
		}
		table.close()
	})
}

// A request that never ends must not keep the storage forever.
func TestRetiringGenerationGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := newTable(buildNothing, time.Minute)
		table.put(widgets())
		g := table.get("widgets.example.com").generation
		s, release := acquire(t, g, short)
		table.remove(g.crd)
		time.Sleep(time.Minute - time.Second)
		synctest.Wait()
		if isDestroyed(s) {
			t.Error("destroyed before its time")
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if !isDestroyed(s) {
			t.Error("not destroyed after its time")
		}
		release()
		table.close()
	})
}

func TestTableCloseDoesNotWaitForRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := newTable(buildNothing, time.Hour)
		table.put(widgets())
		g := table.get("widgets.example.com").generation
		s, release := acquire(t, g, short)
		start := time.Now()
		table.close()
		if waited := time.Since(start); waited != 0 {
			t.Errorf("waited %s", waited)
		}
		if !isDestroyed(s) {
			t.Error("not destroyed")
		}
		release()
		table.put(widgets())
		if table.get("widgets.example.com") != nil {
			t.Error("a closed table takes CRDs")
		}
	})
}
