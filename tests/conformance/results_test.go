package conformance

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// layouts are the servers whose results the document has, in the order of its columns.
var layouts = []struct{ name, title string }{
	{"kube-apiserver", "kube-apiserver"},
	{"triune", "`triune`"},
	{"tiers", "tiers, two replicas each"},
}

const document = "../../docs/conformance.md"

func specsFile(name string) string { return filepath.Join("testdata", "specs", name+".txt") }

// readImpossible returns the specs that cannot pass here, with the reason of each.
func readImpossible() (map[string]string, error) {
	return readLines("impossible", func(line string) (name, reason string, ok bool) { return strings.Cut(line, "\t") })
}

// readResults returns what became of each spec, "passed" or "failed", by its name; no spec if
// none was recorded.
func readResults(layout string) (map[string]string, error) {
	return readLines(layout, func(line string) (name, outcome string, ok bool) {
		outcome, name, ok = strings.Cut(line, " ")
		return name, outcome, ok
	})
}

func readLines(name string, split func(line string) (key, value string, ok bool)) (map[string]string, error) {
	f, err := os.Open(specsFile(name))
	if errors.Is(err, fs.ErrNotExist) {
		return map[string]string{}, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	found := map[string]string{}
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		line := lines.Text()
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		key, value, ok := split(line)
		if !ok {
			return nil, fmt.Errorf("%s: %q is no spec with what is said of it", f.Name(), line)
		}
		found[key] = value
	}
	return found, lines.Err()
}

// writeResults records the results of a layout, and renders the document anew. If not all specs
// were run, it leaves what is recorded of the others.
func writeResults(t *testing.T, layout string, results []result) {
	t.Helper()
	outcomes := map[string]string{}
	if *focus != allSpecs {
		recorded, err := readResults(layout)
		if err != nil {
			t.Fatal(err)
		}
		maps.Copy(outcomes, recorded)
	}
	for _, r := range results {
		outcomes[r.Name] = "failed"
		if r.Passed {
			outcomes[r.Name] = "passed"
		}
	}
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(outcomes)) {
		fmt.Fprintln(&b, outcomes[name], name)
	}
	if err := os.WriteFile(specsFile(layout), []byte(b.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	writeDocument(t)
}

func writeDocument(t *testing.T) {
	t.Helper()
	page, err := render()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(document, []byte(page), 0o644); err != nil {
		t.Fatal(err)
	}
}

// TestRecordedResults checks that what kube-apiserver passes here passes everywhere, that each
// other spec has a reason, and that docs/conformance.md shows all that.
func TestRecordedResults(t *testing.T) {
	impossible, err := readImpossible()
	if err != nil {
		t.Fatal(err)
	}
	reference, err := readResults(layouts[0].name)
	if err != nil {
		t.Fatal(err)
	}
	for _, layout := range layouts {
		results, err := readResults(layout.name)
		if err != nil {
			t.Fatal(err)
		}
		for spec, outcome := range results {
			switch {
			case outcome == "passed":
			case reference[spec] == "passed":
				t.Errorf("%s fails where kube-apiserver passes: %s", layout.name, spec)
			case impossible[spec] == "":
				t.Errorf("%s fails without a reason in %s: %s", layout.name, specsFile("impossible"), spec)
			}
		}
	}
	if *record {
		writeDocument(t)
	}
	want, err := render()
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(document)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Errorf("%s is not what `make test-conformance` writes from tests/conformance/testdata", document)
	}
}

const introduction = `# Conformance

Kubernetes' own conformance tests (%s), built from ` + "`k8s.io/kubernetes`" + ` unchanged, in a
cluster with one real node: kubelet, containerd, kube-proxy, CoreDNS, kube-controller-manager and
kube-scheduler beside each API server. ` + "`make test-conformance`" + ` runs them and writes this page.
A spec that fails is tried once more, since the machine is small.

The images are stand-ins under the public names: a Debian base with agnhost, the sample API
server and the other programs of the same modules.

`

// render returns the document for the recorded results.
func render() (string, error) {
	impossible, err := readImpossible()
	if err != nil {
		return "", err
	}
	outcomes := map[string]map[string]string{} // by layout and spec
	all := map[string]bool{}
	for _, layout := range layouts {
		if outcomes[layout.name], err = readResults(layout.name); err != nil {
			return "", err
		}
		for name := range outcomes[layout.name] {
			all[name] = true
		}
	}
	specs := slices.Sorted(maps.Keys(all))
	var b strings.Builder
	fmt.Fprintf(&b, introduction, "those with `[Conformance]` in their names")
	b.WriteString("| passed |")
	for _, layout := range layouts {
		fmt.Fprintf(&b, " %s |", layout.title)
	}
	b.WriteString("\n|---|" + strings.Repeat("---|", len(layouts)) + "\n")
	groups := map[string][]string{"all": specs}
	for _, spec := range specs {
		groups[group(spec)] = append(groups[group(spec)], spec)
	}
	for _, name := range slices.Sorted(maps.Keys(groups)) {
		fmt.Fprintf(&b, "| %s |", name)
		for _, layout := range layouts {
			fmt.Fprintf(&b, " %s |", passed(groups[name], outcomes[layout.name]))
		}
		b.WriteString("\n")
	}
	b.WriteString("\n## Not passed\n\n| spec | where | reason |\n|---|---|---|\n")
	for _, spec := range specs {
		var where []string
		for _, layout := range layouts {
			if outcomes[layout.name][spec] == "failed" {
				where = append(where, layout.title)
			}
		}
		if len(where) > 0 {
			fmt.Fprintf(&b, "| %s | %s | %s |\n", strings.ReplaceAll(spec, "|", `\|`), strings.Join(where, ", "), impossible[spec])
		}
	}
	return b.String(), nil
}

// group returns the special interest group of a spec, which its name starts with.
func group(spec string) string {
	name, _, _ := strings.Cut(strings.TrimPrefix(spec, "["), "]")
	return name
}

// passed says how many of the specs have passed.
func passed(specs []string, outcomes map[string]string) string {
	ran, passed := 0, 0
	for _, spec := range specs {
		switch outcomes[spec] {
		case "passed":
			passed++
			ran++
		case "failed":
			ran++
		}
	}
	if ran == 0 {
		return "not run"
	}
	return fmt.Sprintf("%d of %d", passed, ran)
}
