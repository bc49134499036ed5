package apiserver

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apiserver/pkg/server/flagz"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	cliflag "k8s.io/component-base/cli/flag"
	featuregatetesting "k8s.io/component-base/featuregate/testing"
	zpagesfeatures "k8s.io/component-base/zpages/features"
	"k8s.io/klog/v2"
)

// withFlags adds a flag for /flagz.
func withFlags(c *Config) {
	var sections cliflag.NamedFlagSets
	sections.FlagSet("generic").String("colour", "blue", "")
	c.Generic.Flagz = flagz.NamedFlagSetsReader{FlagSets: sections}
}

func TestZPages(t *testing.T) {
	h := prepare(newServer(t, func(c *Config) {
		withFlags(c)
		c.Next = &Next{Tier: "behind", Handler: http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			_, _ = w.Write([]byte(`{"paths":["/behind"]}`))
		})}
	}))
	w := do(h, "GET", "/flagz", "Accept: application/json;as=Flagz;v=v1beta1;g=config.k8s.io")
	if w.Code != http.StatusOK || !strings.Contains(w.Body.String(), `"colour":"blue"`) {
		t.Errorf("/flagz: %d %s", w.Code, w.Body)
	}
	w = do(h, "GET", "/statusz", "Accept: application/json;as=Statusz;v=v1beta1;g=config.k8s.io")
	var status struct{ Paths []string }
	if err := json.Unmarshal(w.Body.Bytes(), &status); err != nil {
		t.Fatalf("/statusz: %v in %s", err, w.Body)
	}
	for _, want := range []string{"/behind", "/flagz", "/livez", "/statusz"} {
		if !slices.Contains(status.Paths, want) {
			t.Errorf("/statusz does not list %s: %v", want, status.Paths)
		}
	}
}

func TestZPagesCanBeOff(t *testing.T) {
	featuregatetesting.SetFeatureGatesDuringTest(t, utilfeature.DefaultFeatureGate, featuregatetesting.FeatureOverrides{
		zpagesfeatures.ComponentFlagz: false, zpagesfeatures.ComponentStatusz: false,
	})
	h := prepare(newServer(t, withFlags))
	for _, path := range []string{"/flagz", "/statusz"} {
		if w := do(h, "GET", path); w.Code != http.StatusNotFound {
			t.Errorf("%s: %d", path, w.Code)
		}
	}
}

// TestVerbosityCanBeSet while the server runs.
func TestVerbosityCanBeSet(t *testing.T) {
	h := prepare(newServer(t, func(c *Config) { c.Generic.EnableProfiling = true }))
	put := func(value string) int {
		req := httptest.NewRequest("PUT", "/debug/flags/v", strings.NewReader(value))
		w := httptest.NewRecorder()
		h.ServeHTTP(w, req)
		return w.Code
	}
	t.Cleanup(func() { put("0") })
	if code := put("7"); code != http.StatusOK || !klog.V(7).Enabled() {
		t.Errorf("%d, verbosity 7 is %t", code, klog.V(7).Enabled())
	}
	if code := put("loud"); code != http.StatusBadRequest {
		t.Errorf("an invalid value: %d", code)
	}
	if w := do(h, "GET", "/debug/flags"); w.Code != http.StatusOK || !strings.Contains(w.Body.String(), "<tr>v<br>") {
		t.Errorf("/debug/flags: %d %s", w.Code, w.Body)
	}
	if w := do(prepare(newServer(t, nil)), "GET", "/debug/flags/v"); w.Code != http.StatusNotFound {
		t.Errorf("without profiling: %d", w.Code)
	}
}

// TestMutexSampling: locks are sampled only while requests, also concurrent ones, ask for a
// profile of some seconds.
func TestMutexSampling(t *testing.T) {
	h := prepare(newServer(t, func(c *Config) { c.Generic.EnableProfiling = true }))
	fraction := func() int { return runtime.SetMutexProfileFraction(-1) }
	if w := do(h, "GET", "/debug/pprof/mutex"); w.Code != http.StatusOK || fraction() != 0 {
		t.Errorf("without seconds: %d, sampling %d", w.Code, fraction())
	}
	if w := do(h, "GET", "/debug/pprof/mutex?seconds=no"); w.Code != http.StatusBadRequest || fraction() != 0 {
		t.Errorf("invalid seconds: %d, sampling %d", w.Code, fraction())
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var contended sync.Mutex
	for range 2 {
		go contend(ctx, &contended)
	}
	var requests sync.WaitGroup
	for _, seconds := range []string{"1", "2"} {
		requests.Go(func() {
			w := do(h, "GET", "/debug/pprof/mutex?seconds="+seconds)
			if w.Code != http.StatusOK {
				t.Errorf("%s s: %d %s", seconds, w.Code, w.Body)
				return
			}
			unzip, err := gzip.NewReader(w.Body)
			if err != nil {
				t.Error(err)
				return
			}
			if profile, err := io.ReadAll(unzip); err != nil || !bytes.Contains(profile, []byte("apiserver.contend")) {
				t.Errorf("%s s: the waiting function is not in the profile: %v", seconds, err)
			}
		})
	}
	requests.Wait()
	if fraction() != 0 {
		t.Errorf("afterwards: sampling %d", fraction())
	}
}

// contend takes a contended lock repeatedly.
func contend(ctx context.Context, mu *sync.Mutex) {
	for ctx.Err() == nil {
		mu.Lock()
		runtime.Gosched()
		mu.Unlock()
	}
}

// TestDebugSocket: the socket is open while the server runs.
func TestDebugSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "debug.sock")
	s := newServer(t, func(c *Config) { c.Generic.DebugSocketPath = path })
	listen(t, s.Generic())
	run(t, s)
	client := http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", path)
	}}}
	defer client.CloseIdleConnections()
	await(t, "the socket answers", func() bool {
		res, err := client.Get("http://debug/debug/pprof/cmdline")
		if err != nil {
			return false
		}
		res.Body.Close()
		return res.StatusCode == http.StatusOK
	})
}

// TestRequestsWaitUntilPrepared: a request that arrives while routes are added is answered
// after all have been added.
func TestRequestsWaitUntilPrepared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t, nil)
		answered := make(chan int, 1)
		go func() { answered <- do(s.Handler(), "GET", "/healthz/ping").Code }()
		synctest.Wait()
		select {
		case code := <-answered:
			t.Fatalf("answered %d before the server was prepared", code)
		default:
		}
		s.Prepare()
		if code := <-answered; code != http.StatusOK {
			t.Errorf("answered %d", code)
		}

		ctx, cancel := context.WithCancel(t.Context())
		other := newServer(t, nil)
		gone := make(chan struct{})
		go func() {
			other.Handler().ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(ctx, "GET", "/", nil))
			close(gone)
		}()
		cancel()
		<-gone
		time.Sleep(time.Second) // until the goroutines of the chain have exited
	})
}
