package deploy

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"

	"triune.dev/tests/cluster"
	"triune.dev/tests/deploy/traffic"
	"triune.dev/tests/tools"
)

// prometheus is a running Prometheus.
type prometheus struct{ url string }

// tiersConfig returns a configuration that scrapes every replica of every tier, as
// deploy/prometheus/compose.yml does by DNS.
func tiersConfig(t *testing.T, c *cluster.Cluster) string {
	t.Helper()
	var config strings.Builder
	fmt.Fprintf(&config, "global: {scrape_interval: 15s, evaluation_interval: 15s}\nrule_files: [%s]\nscrape_configs:\n", rulesFile(t))
	for _, tier := range c.ServingTiers() {
		var addresses []string
		for i := range 2 {
			addresses = append(addresses, strings.TrimPrefix(c.ReplicaURL(tier, i), "https://"))
		}
		fmt.Fprintf(&config, `  - job_name: %s
    scheme: https
    tls_config: {ca_file: %s, cert_file: %s, key_file: %s}
    static_configs: [{targets: [%s], labels: {tier: %s}}]
    relabel_configs: [{target_label: job, replacement: kube-apiserver}]
`, tier, c.PKI.ClusterCA.CertFile, c.PKI.Admin.CertFile, c.PKI.Admin.KeyFile, strings.Join(addresses, ", "), tier)
	}
	return config.String()
}

// triuneConfig returns deploy/standalone/prometheus.yml for a server at another address.
func triuneConfig(t *testing.T, c *cluster.Cluster) string {
	t.Helper()
	data, err := os.ReadFile(path(t, "deploy", "standalone", "prometheus.yml"))
	if err != nil {
		t.Fatal(err)
	}
	return strings.NewReplacer(
		"../helm/triune/files/rules.yaml", rulesFile(t),
		"../../.triune/pki/ca.crt", c.PKI.ClusterCA.CertFile,
		"../../.triune/pki/admin.crt", c.PKI.Admin.CertFile,
		"../../.triune/pki/admin.key", c.PKI.Admin.KeyFile,
		"127.0.0.1:6443", strings.TrimPrefix(c.URL, "https://"),
	).Replace(string(data))
}

func rulesFile(t *testing.T) string { return filepath.Join(chart(t), "files", "rules.yaml") }

// startPrometheus starts the real program with shorter intervals than in the configuration.
func startPrometheus(t *testing.T, config string) prometheus {
	t.Helper()
	binary, err := tools.Path(t.Context(), "prometheus")
	if err != nil {
		t.Fatal(err)
	}
	port, err := cluster.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	file := filepath.Join(dir, "prometheus.yml")
	if err := os.WriteFile(file, []byte(strings.ReplaceAll(config, "_interval: 15s", "_interval: 2s")), 0o600); err != nil {
		t.Fatal(err)
	}
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(binary, "--config.file="+file, "--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address=127.0.0.1:"+strconv.Itoa(port))
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
		log.Close()
		if text, err := os.ReadFile(log.Name()); t.Failed() && err == nil {
			t.Logf("prometheus:\n%s", text)
		}
	})
	p := prometheus{"http://127.0.0.1:" + strconv.Itoa(port)}
	eventually(t, time.Minute, func() error { return p.get("/-/ready", nil) })
	return p
}

func (p prometheus) get(path string, into any) error {
	resp, err := http.Get(p.url + path)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK && into == nil {
		return fmt.Errorf("%s: %s", path, resp.Status)
	}
	if into == nil {
		return nil
	}
	return json.NewDecoder(resp.Body).Decode(into)
}

// series returns the current number of series of a query.
func (p prometheus) series(query string) (int, error) {
	var answer struct {
		Status, Error string
		Data          struct{ Result []json.RawMessage }
	}
	if err := p.get("/api/v1/query?query="+url.QueryEscape(query), &answer); err != nil {
		return 0, err
	}
	if answer.Status != "success" {
		return 0, fmt.Errorf("%s: %s", query, answer.Error)
	}
	return len(answer.Data.Result), nil
}

// load sends the requests that the panels show, until the test ends.
func load(t *testing.T, kubeconfig string) {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	g, err := traffic.New(config)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- g.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		t.Log(g)
	})
}

// TestDashboardQueriesReturnSeries runs every query of every dashboard, and every recording
// rule, against a Prometheus that scrapes two replicas of every tier under load, and
// against one that scrapes triune.
func TestDashboardQueriesReturnSeries(t *testing.T) {
	full(t)
	t.Run("tiers", func(t *testing.T) {
		c := cluster.Run(t, cluster.Config{Topology: cluster.Tiers, Replicas: 2})
		load(t, c.Kubeconfig)
		p := startPrometheus(t, tiersConfig(t, c))
		p.up(t, 6)
		deadline := time.Now().Add(3 * time.Minute)
		p.draws(t, deadline, "")
		for tier, selectors := range scaledBy(t) {
			for _, selector := range selectors {
				t.Run("autoscaling of "+tier+"/"+selector, func(t *testing.T) {
					// As an adapter asks: for each Pod, summed over all other labels.
					query := "sum by (instance) (" + strings.Replace(selector, "{", `{job="kube-apiserver",tier="`+tier+`",`, 1) + ")"
					eventually(t, max(time.Second, time.Until(deadline)), func() error {
						n, err := p.series(query)
						if err == nil && n != 2 {
							err = fmt.Errorf("%d replicas have %s, want 2", n, query)
						}
						return err
					})
				})
			}
		}
		p.rules(t)
	})
	t.Run("triune", func(t *testing.T) {
		c := cluster.Run(t, cluster.Config{Topology: cluster.Triune})
		load(t, c.Kubeconfig)
		p := startPrometheus(t, triuneConfig(t, c))
		p.up(t, 1)
		// No network lies between tiers of one process, and the rules of RBAC are
		// read where they are stored.
		p.draws(t, time.Now().Add(3*time.Minute), "triune_next_tier_|triune_authorization_data_age_seconds")
		p.rules(t)
	})
}

// up waits until every target is scraped.
func (p prometheus) up(t *testing.T, targets int) {
	t.Helper()
	eventually(t, time.Minute, func() error {
		if n, err := p.series(`up == 1`); err != nil || n != targets {
			return fmt.Errorf("%d targets are up, want %d: %w", n, targets, err)
		}
		return nil
	})
}

// draws runs the queries of all panels, except for metrics that this topology does not
// have.
func (p prometheus) draws(t *testing.T, deadline time.Time, but string) {
	replace := strings.NewReplacer("$__rate_interval", "1m", "$tier", ".*")
	for file, d := range dashboards(t) {
		for _, panel := range d.Panels {
			for _, target := range panel.Targets {
				if but != "" && regexp.MustCompile(but).MatchString(target.Expr) {
					continue
				}
				t.Run(file+"/"+panel.Title+"/"+target.RefID, func(t *testing.T) {
					eventually(t, max(time.Second, time.Until(deadline)), func() error {
						n, err := p.series(replace.Replace(target.Expr))
						if err == nil && n == 0 {
							err = fmt.Errorf("no series: %s", target.Expr)
						}
						return err
					})
				})
			}
		}
	}
}

// rules checks that Prometheus evaluates all rules without errors, and that none of our
// alerts fires.
func (p prometheus) rules(t *testing.T) {
	t.Run("rules", func(t *testing.T) {
		var answer struct {
			Data struct {
				Groups []struct {
					Name  string
					Rules []struct{ Name, Health, LastError, State string }
				}
			}
		}
		if err := p.get("/api/v1/rules", &answer); err != nil {
			t.Fatal(err)
		}
		rules := 0
		for _, group := range answer.Data.Groups {
			for _, rule := range group.Rules {
				rules++
				if rule.Health == "err" {
					t.Errorf("%s: %s", rule.Name, rule.LastError)
				}
				if strings.HasPrefix(rule.Name, "Triune") && rule.State == "firing" {
					t.Errorf("%s fires on a healthy installation", rule.Name)
				}
			}
		}
		if rules < 30 {
			t.Errorf("%d rules are loaded", rules)
		}
	})
}
