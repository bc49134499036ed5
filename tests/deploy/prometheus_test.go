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
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"triune.dev/tests/cluster"
	"triune.dev/tests/deploy/traffic"
	"triune.dev/tests/tools"
)

// prometheus is a running Prometheus.
type prometheus struct{ url string }

// startPrometheus starts the real program with the rules of the chart. targets are
// the addresses of each tier.
func startPrometheus(t *testing.T, c *cluster.Cluster, targets map[cluster.Tier][]string) prometheus {
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
	var config strings.Builder
	fmt.Fprintf(&config, "global: {scrape_interval: 2s, scrape_timeout: 2s, evaluation_interval: 2s}\nrule_files: [%s]\nscrape_configs:\n",
		filepath.Join(chart(t), "files", "rules.yaml"))
	for tier, addresses := range targets {
		fmt.Fprintf(&config, `  - job_name: %s
    scheme: https
    tls_config: {ca_file: %s, cert_file: %s, key_file: %s}
    static_configs: [{targets: [%s], labels: {tier: %s}}]
    relabel_configs: [{target_label: job, replacement: kube-apiserver}]
`, tier, c.PKI.ClusterCA.CertFile, c.PKI.Admin.CertFile, c.PKI.Admin.KeyFile, strings.Join(addresses, ", "), tier)
	}
	file := filepath.Join(dir, "prometheus.yml")
	if err := os.WriteFile(file, []byte(config.String()), 0o600); err != nil {
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

// series asks how many series a query has now.
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

// load keeps a server busy with what the panels show, until the test ends.
func load(t *testing.T, c *cluster.Cluster) {
	t.Helper()
	config, err := c.REST()
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

// TestDashboardQueriesReturnSeries runs every query of every dashboard, and every
// recording rule, against a Prometheus that scrapes two replicas of every tier
// under load.
func TestDashboardQueriesReturnSeries(t *testing.T) {
	full(t)
	c := cluster.Run(t, cluster.Config{Topology: cluster.Tiers, Replicas: 2})
	targets := map[cluster.Tier][]string{}
	for _, tier := range c.ServingTiers() {
		for i := range 2 {
			targets[tier] = append(targets[tier], strings.TrimPrefix(c.ReplicaURL(tier, i), "https://"))
		}
	}
	load(t, c)
	p := startPrometheus(t, c, targets)
	eventually(t, time.Minute, func() error {
		if n, err := p.series(`up == 1`); err != nil || n != 6 {
			return fmt.Errorf("%d targets are up, want 6: %v", n, err)
		}
		return nil
	})
	withEventLog := strings.Contains(strings.Join(c.Process(cluster.Core, 0).Args, " "), "--nats-url=")
	replace := strings.NewReplacer("$__rate_interval", "1m", "$tier", ".*")
	deadline := time.Now().Add(3 * time.Minute)
	for file, d := range dashboards(t) {
		for _, panel := range d.Panels {
			for _, target := range panel.Targets {
				if !withEventLog && strings.Contains(target.Expr, "triune_eventlog_") {
					continue // these tiers are not connected to NATS
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
	for tier, selectors := range scaledBy(t) {
		for _, selector := range selectors {
			t.Run("autoscaling of "+tier+"/"+selector, func(t *testing.T) {
				// As an adapter asks: of each Pod, summed over all other labels.
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
