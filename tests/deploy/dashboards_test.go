package deploy

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

type datasource struct{ Type, UID string }

type dashboard struct {
	UID, Title string
	Tags       []string
	Templating struct {
		List []struct{ Name, Type, Query string }
	}
	Panels []struct {
		ID          int
		Title, Type string
		Datasource  datasource
		GridPos     struct{ X, Y, W, H int }
		FieldConfig struct{ Defaults struct{ Unit string } }
		Targets     []struct {
			RefID, Expr, LegendFormat string
			Datasource                datasource
		}
	}
}

// dashboards reads the dashboards of the chart, which compose also mounts.
func dashboards(t *testing.T) map[string]dashboard {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(chart(t), "files", "dashboards", "*.json"))
	if err != nil || len(files) < 6 {
		t.Fatalf("dashboards: %v, %v", files, err)
	}
	all := map[string]dashboard{}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var d dashboard
		if err := json.Unmarshal(data, &d); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		all[filepath.Base(file)] = d
	}
	return all
}

// units are Grafana's names of the units of our metrics.
var units = []string{"short", "s", "bytes", "reqps", "eps", "mps", "percentunit"}

var variable = regexp.MustCompile(`\$\{?(\w+)\}?`)

// TestDashboards checks that IDs are unique, and that every panel has a title, a unit, its
// own place, the selected data source, and a query with a legend.
func TestDashboards(t *testing.T) {
	uids := map[string]string{}
	for file, d := range dashboards(t) {
		t.Run(file, func(t *testing.T) {
			if other := uids[d.UID]; other != "" || d.UID == "" || len(d.UID) > 40 {
				t.Errorf("uid %q is empty, long or that of %s", d.UID, other)
			}
			uids[d.UID] = file
			known := []string{"__rate_interval"}
			for _, v := range d.Templating.List {
				known = append(known, v.Name)
			}
			if !slices.Contains(known, "datasource") {
				t.Error("no variable for the data source")
			}
			ids, titles := map[int]bool{}, map[string]bool{}
			places := map[[2]int]string{}
			for _, p := range d.Panels {
				if p.ID <= 0 || ids[p.ID] || p.Title == "" || titles[p.Title] {
					t.Errorf("panel %d %q: id or title is missing or taken", p.ID, p.Title)
				}
				ids[p.ID], titles[p.Title] = true, true
				if !slices.Contains(units, p.FieldConfig.Defaults.Unit) {
					t.Errorf("%s: unit %q", p.Title, p.FieldConfig.Defaults.Unit)
				}
				for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
					for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
						if other := places[[2]int{x, y}]; other != "" || x >= 24 {
							t.Fatalf("%s lies on %q or outside", p.Title, other)
						}
						places[[2]int{x, y}] = p.Title
					}
				}
				if len(p.Targets) == 0 {
					t.Errorf("%s: no query", p.Title)
				}
				refs := map[string]bool{}
				for _, target := range p.Targets {
					if target.Expr == "" || target.LegendFormat == "" || target.RefID == "" || refs[target.RefID] {
						t.Errorf("%s: query %q", p.Title, target.RefID)
					}
					refs[target.RefID] = true
					for _, name := range variable.FindAllStringSubmatch(target.Expr, -1) {
						if !slices.Contains(known, name[1]) {
							t.Errorf("%s: unknown variable %s", p.Title, name[0])
						}
					}
					for _, source := range []datasource{p.Datasource, target.Datasource} {
						if source.Type != "prometheus" || source.UID != "${datasource}" {
							t.Errorf("%s: data source %+v", p.Title, source)
						}
					}
				}
			}
		})
	}
}

// TestRules checks that promtool accepts the rules, and compose's configuration.
func TestRules(t *testing.T) {
	promtool := program{name: "promtool"}
	promtool.must(t, "check", "rules", filepath.Join(chart(t), "files", "rules.yaml"))
	config, err := os.ReadFile(path(t, "deploy", "prometheus", "compose.yml"))
	if err != nil {
		t.Fatal(err)
	}
	// The configuration needs certificates of a running installation.
	dir := t.TempDir()
	text := strings.ReplaceAll(string(config), "/etc/triune/rules.yaml", filepath.Join(chart(t), "files", "rules.yaml"))
	text = regexp.MustCompile(`/pki/[\w/.-]+`).ReplaceAllStringFunc(text, func(name string) string {
		name = filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		return name
	})
	file := filepath.Join(dir, "prometheus.yml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	promtool.must(t, "check", "config", "--syntax-only", file)
}

// TestAlerts checks that every alert fires in its case of testdata/alerts.yaml, and none on
// a healthy installation.
func TestAlerts(t *testing.T) {
	rules, err := os.ReadFile(filepath.Join(chart(t), "files", "rules.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	cases, err := os.ReadFile(filepath.Join("testdata", "alerts.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	for _, alert := range regexp.MustCompile(`- alert: (\w+)`).FindAllStringSubmatch(string(rules), -1) {
		if !strings.Contains(string(cases), "alertname: "+alert[1]+"\n") {
			t.Errorf("nothing shows that %s fires", alert[1])
		}
	}
	// promtool looks for the rules beside the test file.
	dir := t.TempDir()
	for name, data := range map[string][]byte{"rules.yaml": rules, "alerts.yaml": cases} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	program{name: "promtool"}.must(t, "test", "rules", filepath.Join(dir, "alerts.yaml"))
}
