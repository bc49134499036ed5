package extensions_test

import (
	"bytes"
	"crypto/tls"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"triune.dev/shared/testing/tiertest"
)

// The transcripts below testdata/transcripts are requests and kube-apiserver's responses.
// They are recorded:
//
//	go test ./services/extensions -run TestTranscripts \
//	    -reference=https://127.0.0.1:6443 -reference-token=TOKEN
//
// sends the requests to a kube-apiserver of the release that Triune stands for
// and rewrites the answers. All CRDs of that server are deleted first.
var (
	reference      = flag.String("reference", "", "URL of a kube-apiserver to record the transcripts from; all of its CRDs are deleted")
	referenceToken = flag.String("reference-token", "", "bearer token of an administrator of -reference")
)

// TestTranscripts compares the responses of the tier with those of kube-apiserver.
func TestTranscripts(t *testing.T) {
	files, err := filepath.Glob("testdata/transcripts/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no transcripts: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			script := readTranscript(t, file)
			if *reference != "" {
				server := referenceServer(t)
				reset(t, server)
				script.record(t, server)
				reset(t, server)
				if err := os.WriteFile(file, []byte(script.String()), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			t.Parallel()
			f := newFixture(t)
			script.replay(t, f.endpoint)
		})
	}
}

// transcript is a file of steps; head is the text before the first.
type transcript struct {
	head  string
	steps []*step
}

// step is one request with its recorded answer. A step named "await CODE" is sent
// until the answer has that code, which is not compared any further.
type step struct {
	name    string
	request string
	answer  string
}

func readTranscript(t *testing.T, file string) *transcript {
	t.Helper()
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	parts := strings.Split("\n"+string(raw), "\n== ")
	script := &transcript{head: strings.TrimPrefix(parts[0], "\n")}
	for _, part := range parts[1:] {
		name, rest, _ := strings.Cut(part, "\n")
		request, answer, _ := strings.Cut(rest, "\n-- ")
		script.steps = append(script.steps, &step{name: name, request: strings.TrimSpace(request), answer: strings.TrimSpace(answer)})
	}
	return script
}

func (s *transcript) String() string {
	var out strings.Builder
	out.WriteString(strings.TrimSpace(s.head) + "\n")
	for _, step := range s.steps {
		fmt.Fprintf(&out, "\n== %s\n%s\n", step.name, step.request)
		if step.answer != "" {
			fmt.Fprintf(&out, "-- %s\n", step.answer)
		}
	}
	return out.String()
}

func (s *transcript) record(t *testing.T, server *endpoint) {
	for _, step := range s.steps {
		if step.await(t, server) {
			continue
		}
		step.answer = normalize(step.send(t, server))
	}
}

func (s *transcript) replay(t *testing.T, server *endpoint) {
	for _, step := range s.steps {
		if step.await(t, server) {
			continue
		}
		if diff := cmp.Diff(step.answer, normalize(step.send(t, server))); diff != "" {
			t.Errorf("%s: %s (-kube-apiserver +triune):\n%s", step.name, strings.SplitN(step.request, "\n", 2)[0], diff)
		}
	}
}

func (s *step) await(t *testing.T, server *endpoint) bool {
	t.Helper()
	code, ok := strings.CutPrefix(s.name, "await ")
	if !ok {
		return false
	}
	want, err := strconv.Atoi(code)
	if err != nil {
		t.Fatalf("step %q: %v", s.name, err)
	}
	tiertest.Eventually(t, s.name+" of "+s.request, func() (bool, string) {
		a := s.send(t, server)
		return a.code == want, a.body
	})
	return true
}

// send sends the request: a line with method and path, headers, an empty line, a
// body. A body "@FILE" is read from testdata.
func (s *step) send(t *testing.T, server *endpoint) answer {
	t.Helper()
	head, body, _ := strings.Cut(s.request, "\n\n")
	if file, ok := strings.CutPrefix(body, "@"); ok {
		raw, err := os.ReadFile(filepath.Join("testdata", file))
		if err != nil {
			t.Fatal(err)
		}
		body = string(raw)
	}
	lines := strings.Split(head, "\n")
	method, path, _ := strings.Cut(lines[0], " ")
	headers := []string{"User-Agent: transcript", "Accept: application/json"}
	if body != "" {
		headers = append(headers, "Content-Type: application/yaml")
	}
	return server.send(t, method, path, body, append(headers, lines[1:]...)...)
}

// referenceServer returns the kube-apiserver to record from.
func referenceServer(t *testing.T) *endpoint {
	t.Helper()
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
	t.Cleanup(transport.CloseIdleConnections)
	return &endpoint{url: *reference, token: *referenceToken, client: &http.Client{Transport: transport}}
}

// reset deletes all CRDs of the reference, one by one: kube-apiserver leaves the
// objects of CRDs behind that are deleted as a collection.
func reset(t *testing.T, server *endpoint) {
	t.Helper()
	const all = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
	tiertest.Eventually(t, "the reference has no CRDs", func() (bool, string) {
		a := (&step{request: "GET " + all}).send(t, server)
		var list metav1.PartialObjectMetadataList
		if err := json.Unmarshal([]byte(a.body), &list); err != nil {
			return false, err.Error()
		}
		for _, crd := range list.Items {
			(&step{request: "DELETE " + all + "/" + crd.Name}).send(t, server)
		}
		return len(list.Items) == 0, a.body
	})
}

// variable matches values that differ between two runs.
var variable = []struct {
	match *regexp.Regexp
	with  string
}{
	{regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`), "UID"},
	{regexp.MustCompile(`(resourceVersion[\\"]*: ?[\\"]*)[0-9]+`), `${1}RV`},
	{regexp.MustCompile(`[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:.]+Z`), "TIME"},
	{regexp.MustCompile(`("continue": ?)"[^"]+"`), `$1"TOKEN"`},
	{regexp.MustCompile(`"[0-9]+s"`), `"AGE"`},
	{regexp.MustCompile(`(large resource version: [0-9]+, current: )[0-9]+`), `${1}RV`},
}

// normalize returns the code, the headers that matter and the body with JSON
// indented: null and [] stay what they are, and nothing is sorted but the managers
// of fields.
func normalize(a answer) string {
	var out strings.Builder
	fmt.Fprintf(&out, "%d %s\n", a.code, http.StatusText(a.code))
	for _, name := range []string{"Content-Type", "Retry-After", "Warning"} {
		for _, value := range a.header.Values(name) {
			fmt.Fprintf(&out, "%s: %s\n", name, value)
		}
	}
	out.WriteString("\n" + indent([]byte(a.body)))
	text := out.String()
	for _, v := range variable {
		text = v.match.ReplaceAllString(text, v.with)
	}
	return strings.TrimSpace(text)
}

// indent indents a sequence of JSON values; what is not JSON stays as it is.
func indent(body []byte) string {
	var out bytes.Buffer
	decoder := json.NewDecoder(bytes.NewReader(body))
	decoder.UseNumber()
	for {
		value, err := decodeOrdered(decoder)
		if errors.Is(err, io.EOF) {
			return out.String()
		}
		if err != nil {
			return string(body)
		}
		encoder := json.NewEncoder(&out)
		encoder.SetEscapeHTML(false)
		encoder.SetIndent("", " ")
		if err := encoder.Encode(value); err != nil {
			return string(body)
		}
	}
}
