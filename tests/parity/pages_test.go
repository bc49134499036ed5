package parity

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"triune.dev/tests/cluster"
)

// page requests a page from both servers, and fails unless status and media type are equal.
// The bodies always differ between two processes.
func page(t *testing.T, path, accept string) (reference, tested *Answer) {
	t.Helper()
	var answers [2]*Answer
	for i, peer := range []*Peer{peers.reference, peers.tested} {
		r := Request{Do: "GET " + path}
		if accept != "" {
			r.Headers = map[string]string{"Accept": accept}
		}
		a, err := peer.Send(t.Context(), r, nil)
		if err != nil {
			t.Fatal(err)
		}
		answers[i] = a
	}
	want, got := answers[0], answers[1]
	if want.Code != got.Code || want.Header.Get("Content-Type") != got.Header.Get("Content-Type") {
		t.Fatalf("%d %q, want %d %q\n%.500s", got.Code, got.Header.Get("Content-Type"), want.Code, want.Header.Get("Content-Type"), got.Body)
	}
	return want, got
}

// TestFlagz checks that the page of a server with all flags of kube-apiserver lists them
// all, with only their values differing.
func TestFlagz(t *testing.T) {
	type document struct {
		Kind, APIVersion string
		Metadata         map[string]any
		Flags            map[string]string
	}
	for _, version := range []string{"v1alpha1", "v1beta1"} {
		t.Run(version, func(t *testing.T) {
			reference, tested := page(t, "/flagz", "application/json;as=Flagz;v="+version+";g=config.k8s.io")
			var want, got document
			for body, into := range map[*Answer]*document{reference: &want, tested: &got} {
				if err := json.Unmarshal(body.Body, into); err != nil {
					t.Fatal(err)
				}
			}
			if peers.tested.Cluster.Config.Topology != cluster.Tiers {
				for name := range want.Flags {
					if _, ok := got.Flags[name]; !ok {
						t.Errorf("no flag %s", name)
					}
				}
			}
			if got.Flags["secure-port"] == "" || strings.Contains(string(tested.Body), "PRIVATE KEY") {
				t.Errorf("got %v", got.Flags)
			}
			want.Flags, got.Flags = nil, nil
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("(-kube-apiserver +tested):\n%s", diff)
			}
			if want, got := reference.Header["Warning"], tested.Header["Warning"]; !slices.Equal(want, got) {
				t.Errorf("warnings %q, want %q", got, want)
			}
		})
	}
	t.Run("text", func(t *testing.T) {
		want, got := page(t, "/flagz", "text/plain")
		if diff := cmp.Diff(head(want.Body), head(got.Body)); diff != "" {
			t.Errorf("(-kube-apiserver +tested):\n%s", diff)
		}
	})
}

// TestStatusz checks that the page is equal except for the start time and the paths of
// health checks.
func TestStatusz(t *testing.T) {
	reference, tested := page(t, "/statusz", "application/json;as=Statusz;v=v1beta1;g=config.k8s.io")
	var documents [2]map[string]any
	for i, a := range []*Answer{reference, tested} {
		d := map[string]any{}
		if err := json.Unmarshal(a.Body, &d); err != nil {
			t.Fatal(err)
		}
		if started, _ := d["startTime"].(string); started == "" {
			t.Errorf("no start time in %s", a.Body)
		}
		// The Go version depends on the build.
		maps.DeleteFunc(d, func(key string, _ any) bool {
			return key == "startTime" || key == "uptimeSeconds" || key == "goVersion"
		})
		paths, _ := d["paths"].([]any)
		d["paths"] = slices.DeleteFunc(paths, func(path any) bool { name, _ := path.(string); return ownPath(name) })
		documents[i] = d
	}
	if diff := cmp.Diff(documents[0], documents[1]); diff != "" {
		t.Errorf("(-kube-apiserver +tested):\n%s", diff)
	}
	text, ours := page(t, "/statusz", "text/plain")
	if diff := cmp.Diff(head(text.Body), head(ours.Body)); diff != "" {
		t.Errorf("(-kube-apiserver +tested):\n%s", diff)
	}
}

// TestFairnessDumps compares the headings of the tables.
func TestFairnessDumps(t *testing.T) {
	for _, name := range []string{"priority_levels", "queues", "requests"} {
		want, got := page(t, "/debug/api_priority_and_fairness/dump_"+name, "")
		if diff := cmp.Diff(strings.Fields(head(want.Body)), strings.Fields(head(got.Body))); diff != "" {
			t.Errorf("%s (-kube-apiserver +tested):\n%s", name, diff)
		}
	}
}

// head returns the first non-empty line.
func head(body []byte) string {
	line, _, _ := strings.Cut(strings.TrimSpace(string(body)), "\n")
	return line
}
