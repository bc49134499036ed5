package workload

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"triune.dev/tests/bench/load"
	"triune.dev/tests/bench/report"
)

// TestFirstCallsAreOfTheReads checks that each further start has the reads of the table, in
// their order and for their rows.
func TestFirstCallsAreOfTheReads(t *testing.T) {
	starts := map[int][]report.Row{}
	for _, w := range All() {
		if w.Start == 0 && w.Group == tableGroup && w.Limits[Warm] > 0 {
			starts[0] = append(starts[0], w.Row(Cold, 0), w.Row(Warm, 0))
		}
		if w.Start > 0 {
			starts[w.Start] = append(starts[w.Start], w.Row(Cold, 0), w.Row(Warm, 0))
			if w.Slow != (w.Name == "list-custom-json") || w.Applies(Subject{Floor: true}) || !w.Applies(Subject{Tiers: true, Replicated: true}) {
				t.Errorf("%s, start %d: slow or not, or of other servers than the first", w.Name, w.Start)
			}
		}
	}
	if len(starts) != 1+furtherStarts {
		t.Fatalf("%d starts", len(starts))
	}
	for start, rows := range starts {
		if diff := cmp.Diff(starts[0], rows); diff != "" {
			t.Errorf("start %d: %s", start, diff)
		}
	}
	if len(starts[0]) != 2*len(reads) {
		t.Errorf("%d rows of %d reads", len(starts[0]), len(reads))
	}
}

// TestFurtherStartsMeasureFirstCallsAlone checks that only the call after the preparation
// is measured, and not the two that follow.
func TestFurtherStartsMeasureFirstCallsAlone(t *testing.T) {
	var asked []string
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.URL.Path)
		fmt.Fprint(w, `{"items":[{"metadata":{"uid":"1"}}]}`)
	}))
	s.EnableHTTP2 = true
	s.StartTLS()
	t.Cleanup(s.Close)
	e := &Env{
		Quick: true, Sizes: map[string]int64{},
		Targets:   []load.Target{{URL: s.URL, TLS: s.Client().Transport.(*http.Transport).TLSClientConfig}},
		Processes: func() []Process { return []Process{{Name: "server", PID: os.Getpid()}} },
	}
	thing := func(items int) Workload {
		r := read{
			name: "list-things", limit: 1, request: accepting(jsonType, "/things"), items: items, update: touchPod,
			need: func(e *Env, ctx context.Context) error {
				return e.once("things", func() error {
					_, err := e.send(ctx, load.Request{Path: "/fill"})
					return err
				})
			},
		}
		return r.again(1)
	}
	var phases []string
	publish := func(phase string, _ float64, s report.Sample) {
		phases = append(phases, phase)
		if s.Ops != 1 || s.Body == 0 || s.P50 == 0 {
			t.Errorf("%s: %+v", phase, s)
		}
	}
	if err := thing(1).Run(t.Context(), e, publish); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"/fill", "/version", "/things", "/things", "/things"}, asked); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{Cold}, phases); diff != "" {
		t.Error(diff)
	}
	if err := thing(2).Run(t.Context(), e, publish); err == nil || len(phases) != 1 {
		t.Errorf("an answer with too few objects was measured: %v, %q", err, phases)
	}
}

// TestServerIsLeftAloneAfterItWasFilled checks that the pause comes once, before the next
// first call.
func TestServerIsLeftAloneAfterItWasFilled(t *testing.T) {
	e := &Env{}
	var got []time.Duration
	for _, step := range []string{"", "pods", "pods", "widgets"} {
		if step != "" {
			if err := e.once(step, func() error { return nil }); err != nil {
				t.Fatal(err)
			}
		}
		got = append(got, e.atLeast(afterCall))
	}
	if diff := cmp.Diff([]time.Duration{afterCall, afterFilling, afterCall, afterFilling}, got); diff != "" {
		t.Error(diff)
	}
}
