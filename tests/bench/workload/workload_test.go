package workload

import (
	"encoding/json"
	"strings"
	"testing"

	"triune.dev/tests/bench/load"
)

func TestTableOfWorkloads(t *testing.T) {
	type server struct {
		name  string
		start int
	}
	names := map[server]bool{}
	limits := 0
	for _, w := range All() {
		if names[server{w.Name, w.Start}] {
			t.Errorf("%s is there twice on start %d", w.Name, w.Start)
		}
		names[server{w.Name, w.Start}] = true
		if w.Title == "" || w.Group == "" || w.Figure == "" || w.Run == nil {
			t.Errorf("%s lacks a title, group, figure or body", w.Name)
		}
		for phase, limit := range w.Limits {
			if limit > 0 && w.Start == 0 {
				limits++
			}
			if got := w.Row(phase, 0).Limit; got != limit {
				t.Errorf("%s, %s: limit %v is %v in its row", w.Name, phase, limit, got)
			}
		}
		if w.Applies(Subject{Floor: true}) && w.Only != nil {
			t.Errorf("%s: only some servers, but the floor is one of them", w.Name)
		}
	}
	// The rows of the contract, the list of 4,000 pods without matches, and six attacks.
	if limits != 37 {
		t.Errorf("%d rows have limits", limits)
	}
}

func TestContentIsOfTheSizeItSays(t *testing.T) {
	for name, test := range map[string]struct {
		object     object
		least, max int
	}{
		"pod":         {pod("pod-1", 1), 900, 2000}, // defaults and managed fields make it about 3.9 kB
		"configMap":   {configMap("a", 1), 700, 1200},
		"schema":      {definition("bench.triune.dev", "things", "Thing", schemaBytes), schemaBytes - 1000, schemaBytes + 1500},
		"application": {application(1), 8000, 10500}, // managed fields make it about 10 kB
		"widget":      {widget("widget-1", 1), 700, 1500},
	} {
		if n := len(encode(test.object)); n < test.least || n > test.max {
			t.Errorf("%s has %d bytes", name, n)
		}
	}
}

func TestMixIsAsItIsDescribed(t *testing.T) {
	counts := map[string]int{}
	for i := range 1000 {
		r := mix(i)
		switch {
		case strings.HasPrefix(r.Path, leasesPath):
			counts["lease"]++
		case strings.HasSuffix(r.Path, "/status"):
			counts["status"]++
		case r.Path == eventsPath:
			counts["event"]++
		case strings.Contains(r.Path, "fieldSelector"):
			counts["list"]++
		default:
			counts["get"]++
		}
		if r.Body != nil && !json.Valid(r.Body) {
			t.Errorf("request %d: %s", i, r.Body)
		}
	}
	for name, want := range map[string]int{"lease": 500, "status": 150, "event": 100, "get": 200, "list": 50} {
		if counts[name] != want {
			t.Errorf("%d %s requests of 1,000, want %d", counts[name], name, want)
		}
	}
}

func TestFloorAnswersWithWhatServersAnswered(t *testing.T) {
	e := &Env{Subject: Subject{Floor: true}, Sizes: map[string]int64{"get": 321}}
	got, err := e.translate("get", load.Request{Path: "/api/v1/x", Status: 201, Encoding: "gzip"})
	if err != nil || got.Path != "/bytes/321?status=201" || got.MinSize != 321 || got.MaxSize != 321 || got.Encoding != "" {
		t.Errorf("got %+v, %v", got, err)
	}
	if _, err := e.translate("list", load.Request{}); err == nil {
		t.Error("a size that nobody knows was translated")
	}
}

func TestEveryTouchChangesTheObject(t *testing.T) {
	e := &Env{}
	if a, b := e.touch(0, 0), e.touch(0, 0); string(a.Body) == string(b.Body) {
		t.Errorf("twice %s: the second would make no event", a.Body)
	}
}
