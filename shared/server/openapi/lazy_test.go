package openapi

import (
	"testing"
	"testing/synctest"
	"time"
)

// TestNothingIsBuiltAtStart: Describe generates no definitions, and each kind of request
// generates them at most once.
func TestNothingIsBuiltAtStart(t *testing.T) {
	served := newTier(t)
	if *served.made != 0 {
		t.Fatalf("definitions made %d times before the first request", *served.made)
	}
	for range 3 {
		get(served.Documents(), autoscaling)
	}
	if *served.made != 1 {
		t.Errorf("definitions made %d times for one document", *served.made)
	}
	get(served.Documents(), PathV3)
	if *served.made != 1 {
		t.Errorf("definitions made %d times for all v3 documents", *served.made)
	}
	for range 3 {
		get(served.Documents(), PathV2)
	}
	if *served.made != 2 {
		t.Errorf("definitions made %d times for v3 and v2", *served.made)
	}
}

// TestIndexKeepsNothing: building the index retains hashes and no documents.
func TestIndexKeepsNothing(t *testing.T) {
	documents := newTier(t).Documents()
	get(documents, PathV3)
	for path, document := range documents.v3 {
		if document.knownTag() == "" || len(document.encoded) > 0 {
			t.Errorf("%s: hash %q, %d forms kept", path, document.knownTag(), len(document.encoded))
		}
	}
}

// TestRebuildingGivesTheSame: a rebuilt document still matches its hash in the index, also in
// another process.
func TestRebuildingGivesTheSame(t *testing.T) {
	documents := newTier(t).Documents()
	for _, path := range []string{PathV2, autoscaling, PathV3 + "/apis/autoscaling"} {
		want := get(documents, path).Header.Get("Etag")
		for range 5 {
			if got := get(newTier(t).Documents(), path).Header.Get("Etag"); got != want {
				t.Fatalf("%s: hash %s, then %s", path, want, got)
			}
		}
	}
}

// TestDefinitionsAreForgotten: some time after their last use, definitions are dropped; they
// are generated again when needed.
func TestDefinitionsAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		served := newTier(t)
		cached := func() bool {
			synctest.Wait()
			served.definitions.inUse.Lock()
			defer served.definitions.inUse.Unlock()
			return served.definitions.v3 != nil
		}
		get(served.Documents(), autoscaling)
		time.Sleep(9 * time.Second)
		get(served.Documents(), PathV3+"/version")
		time.Sleep(9 * time.Second)
		if !cached() {
			t.Error("forgotten nine seconds after the last use")
		}
		time.Sleep(time.Second)
		if cached() {
			t.Error("cached ten seconds after the last use")
		}
		if served.definitions.names != nil {
			t.Error("names are still cached")
		}
		if res := get(served.Documents(), PathV3+"/apis/autoscaling"); res.StatusCode != 200 || *served.made != 2 {
			t.Errorf("after that: %s, made %d times", res.Status, *served.made)
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
	})
}
