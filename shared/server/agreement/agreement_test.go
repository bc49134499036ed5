package agreement

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

func TestContradictions(t *testing.T) {
	own := Settings{"--anonymous-auth": "true", "--api-audiences": "a", "--only-mine": "x", "--same": "y"}
	core := Settings{"--anonymous-auth": "false", "--api-audiences": "b", "--only-cores": "z", "--same": "y"}
	want := []string{
		"aggregator has --anonymous-auth=true, core has --anonymous-auth=false",
		"aggregator has --api-audiences=a, core has --api-audiences=b",
	}
	if diff := cmp.Diff(want, own.Contradictions("aggregator", "core", core)); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestFileDigest(t *testing.T) {
	file := filepath.Join(t.TempDir(), "policy.yaml")
	if err := os.WriteFile(file, []byte("rules: []\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	digest, err := FileDigest(file)
	if err != nil || !strings.HasPrefix(digest, "sha256:") {
		t.Errorf("got %q, %v", digest, err)
	}
	if err := os.WriteFile(file, []byte("rules: [{level: None}]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if changed, err := FileDigest(file); err != nil || changed == digest {
		t.Errorf("got %q before and %q after a change, %v", digest, changed, err)
	}
	if got, err := FileDigest(""); err != nil || got != None {
		t.Errorf("no file: %q, %v", got, err)
	}
	if _, err := FileDigest(file + ".missing"); err == nil {
		t.Error("no error for a file that is missing")
	}
}

func TestHandler(t *testing.T) {
	failing := false
	handler := Handler(func() (Settings, error) {
		if failing {
			return nil, errors.New("cannot read the policy")
		}
		return Settings{"--anonymous-auth": "true"}, nil
	})
	ask := func(method string) *httptest.ResponseRecorder {
		recorder := httptest.NewRecorder()
		handler.ServeHTTP(recorder, httptest.NewRequest(method, Path, nil))
		return recorder
	}
	if got := ask(http.MethodGet); got.Code != http.StatusOK || strings.TrimSpace(got.Body.String()) != `{"--anonymous-auth":"true"}` {
		t.Errorf("%d %s", got.Code, got.Body)
	}
	if got := ask(http.MethodPost); got.Code != http.StatusMethodNotAllowed || got.Header().Get("Allow") != "GET" {
		t.Errorf("POST: %d, Allow %q", got.Code, got.Header().Get("Allow"))
	}
	failing = true
	if got := ask(http.MethodGet); got.Code != http.StatusInternalServerError {
		t.Errorf("a file that cannot be read: %d", got.Code)
	}
}

// tiers holds the settings of core and of another tier, which a test changes.
type tiers struct {
	core, own Settings
	err       error
	received  []Settings // by OnCoreSettings
}

func (w *tiers) check(t *testing.T, registerer prometheus.Registerer) *Check {
	t.Helper()
	c, err := New(Config{
		Tier: "extensions", Core: "core",
		Own:            func() (Settings, error) { return w.own, nil },
		Ask:            func(context.Context) ([]byte, error) { return w.answer() },
		OnCoreSettings: func(s Settings) { w.received = append(w.received, s) },
		Registerer:     registerer,
	})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func (w *tiers) answer() ([]byte, error) {
	if w.err != nil {
		return nil, w.err
	}
	return json.Marshal(w.core)
}

func TestCheck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &tiers{core: Settings{"--anonymous-auth": "false"}, own: Settings{"--anonymous-auth": "true"}}
		registry := prometheus.NewRegistry()
		c := w.check(t, registry)
		ready := func(want string) {
			t.Helper()
			got := ""
			if err := c.Check(nil); err != nil {
				got = err.Error()
			}
			if got != want {
				t.Errorf("readyz says %q, want %q", got, want)
			}
		}
		contradicted := func(want float64) {
			t.Helper()
			if got := testutil.ToFloat64(c.contradictions); got != want {
				t.Errorf("the metric is %v, want %v", got, want)
			}
		}
		const line = "extensions has --anonymous-auth=true, core has --anonymous-auth=false"
		ready("core has not been asked for its settings yet")

		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go c.Run(ctx)
		synctest.Wait()
		ready(line)
		contradicted(1)

		// The operator fixes it, in a file that is reloaded or by restarting core.
		w.core = Settings{"--anonymous-auth": "true"}
		time.Sleep(unsettledInterval)
		synctest.Wait()
		ready("")
		contradicted(0)
		if c.Detail() != "" {
			t.Errorf("detail %q", c.Detail())
		}

		// A tier that was ready stays ready and reports the contradiction.
		w.core = Settings{"--anonymous-auth": "false"}
		time.Sleep(settledInterval)
		synctest.Wait()
		ready("")
		contradicted(1)
		if c.Detail() != line+"\n" {
			t.Errorf("detail %q", c.Detail())
		}

		// While core is unavailable, the last result remains.
		w.err = errors.New("connection refused")
		time.Sleep(settledInterval)
		synctest.Wait()
		ready("")
		contradicted(1)
	})
}

// TestCheckWithoutCore: a tier works without core, and with a core of an earlier release.
func TestCheckWithoutCore(t *testing.T) {
	tests := map[string]struct {
		err      error
		received []Settings
	}{
		"away":               {errors.New("connection refused"), nil},
		"an earlier release": {apierrors.NewNotFound(schema.GroupResource{}, ""), []Settings{nil}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			w := &tiers{err: test.err, own: Settings{"--anonymous-auth": "true"}}
			c := w.check(t, nil)
			c.ask(t.Context())
			if err := c.Check(nil); err != nil {
				t.Error(err)
			}
			if diff := cmp.Diff(test.received, w.received); diff != "" {
				t.Errorf("received (-want +got)\n%s", diff)
			}
			// It compares as soon as it can.
			w.err, w.core = nil, Settings{"--anonymous-auth": "false"}
			c.ask(t.Context())
			err := c.Check(nil)
			if test.received == nil && err == nil {
				t.Error("contradicts core and is ready")
			}
			if test.received != nil && err != nil {
				t.Errorf("was ready and is not any more: %v", err)
			}
		})
	}
}
