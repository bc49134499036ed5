package deploy

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	keeper "triune.dev/shared/process/pki/secrets"
)

// TestChartMonitoring checks that the ServiceMonitors select the Services of the tiers and
// use existing credentials, that the PrometheusRule has the tested rules, that the
// ConfigMaps for Grafana's sidecar have the dashboards, and that pods have the annotations
// for a Prometheus without operator.
func TestChartMonitoring(t *testing.T) {
	values := filepath.Join(chart(t), "ci", "full-values.yaml")
	r := render(t, values)
	list := r.list(t)
	certificate := list.Certificates[slices.IndexFunc(list.Certificates, func(c keeper.Certificate) bool { return c.CommonName == "prometheus" })]
	if !slices.Equal(certificate.Organizations, []string{"system:monitoring"}) || certificate.Authority != "ca" || !certificate.Client {
		t.Errorf("the certificate of Prometheus is %+v", certificate)
	}
	var monitors []string
	rules := false
	for document := range strings.SplitSeq(helm(t).must(t, "template", "t", chart(t), "--values", values, "--show-only=templates/monitoring.yaml"), "\n---\n") {
		var object struct {
			Kind     string
			Metadata struct{ Name string }
			Spec     struct {
				Groups    []any
				Selector  struct{ MatchLabels map[string]string }
				Endpoints []struct {
					Port, Scheme string
					TLSConfig    struct {
						CA, Cert   struct{ Secret struct{ Name, Key string } }
						KeySecret  struct{ Name, Key string }
						ServerName string
					}
				}
			}
		}
		if err := yaml.Unmarshal([]byte(document), &object); err != nil {
			t.Fatal(err)
		}
		switch object.Kind {
		case "PrometheusRule":
			rules = true
			var file struct{ Groups []any }
			data, err := os.ReadFile(rulesFile(t))
			if err != nil {
				t.Fatal(err)
			}
			if err := yaml.Unmarshal(data, &file); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(file.Groups, object.Spec.Groups); diff != "" || len(file.Groups) == 0 {
				t.Errorf("rules (-file +PrometheusRule):\n%s", diff)
			}
		case "ServiceMonitor":
			name := object.Metadata.Name
			monitors = append(monitors, name)
			for service, o := range r.services {
				if selects(object.Spec.Selector.MatchLabels, o.Labels) != (service == name) {
					t.Errorf("%s and the Service %s: labels %v", name, service, o.Labels)
				}
			}
			if len(object.Spec.Endpoints) != 1 {
				t.Fatalf("%s has %d endpoints", name, len(object.Spec.Endpoints))
			}
			e := object.Spec.Endpoints[0]
			for key, ref := range map[string]struct{ Name, Key string }{"ca.crt": e.TLSConfig.CA.Secret, "tls.crt": e.TLSConfig.Cert.Secret, "tls.key": e.TLSConfig.KeySecret} {
				if ref.Name != "t-triune-"+certificate.Name || ref.Key != key {
					t.Errorf("%s: %s is %s of %s", name, key, ref.Key, ref.Name)
				}
			}
			if e.Port != "https" || e.Scheme != "https" || !strings.HasPrefix(e.TLSConfig.ServerName, name+".") {
				t.Errorf("%s scrapes %s at port %s as %s", name, e.Scheme, e.Port, e.TLSConfig.ServerName)
			}
		}
	}
	if len(monitors) != len(tierServices) || !rules {
		t.Errorf("ServiceMonitors are %v, and there is a PrometheusRule: %v", monitors, rules)
	}
	for file := range dashboards(t) {
		text, err := os.ReadFile(filepath.Join(chart(t), "files", "dashboards", file))
		if err != nil {
			t.Fatal(err)
		}
		name := "t-triune-dashboard-" + strings.TrimSuffix(file, ".json")
		m := r.maps[name]
		if m == nil || m.Labels["grafana_dashboard"] != "1" || strings.TrimSpace(m.Data[file]) != strings.TrimSpace(string(text)) {
			t.Errorf("the ConfigMap %s is missing, has no label, or is not %s", name, file)
		}
	}
	for _, tier := range tierServices {
		annotations := r.deployments["t-triune-"+tier].Spec.Template.Annotations
		if annotations["prometheus.io/scrape"] != "true" || annotations["prometheus.io/scheme"] != "https" || annotations["prometheus.io/port"] != "6443" {
			t.Errorf("%s has the annotations %v", tier, annotations)
		}
	}
}

// TestGrafanaProvisioning checks that docker-compose.yml mounts the files at the paths in
// the provisioning, and that the data source is the Prometheus of the same installation.
func TestGrafanaProvisioning(t *testing.T) {
	services := composeServices(t)
	grafana := services["grafana"]
	provisioning, _ := grafana.mounted("/etc/grafana/provisioning")
	var sources struct {
		Datasources []struct{ Type, URL, Access string }
	}
	var providers struct {
		Providers []struct{ Options struct{ Path string } }
	}
	for file, into := range map[string]any{"datasources/prometheus.yaml": &sources, "dashboards/triune.yaml": &providers} {
		data, err := os.ReadFile(path(t, provisioning, file))
		if err != nil {
			t.Fatal(err)
		}
		if err := yaml.Unmarshal(data, into); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
	}
	if len(sources.Datasources) != 1 || len(providers.Providers) != 1 {
		t.Fatalf("%d data sources, %d providers of dashboards", len(sources.Datasources), len(providers.Providers))
	}
	if source := sources.Datasources[0]; source.Type != "prometheus" || source.URL != "http://prometheus:9090" {
		t.Errorf("the data source is %+v", source)
	}
	if _, ok := services["prometheus"]; !ok {
		t.Error("there is no service prometheus")
	}
	at := providers.Providers[0].Options.Path
	source, _ := grafana.mounted(at)
	for file := range dashboards(t) {
		data, err := os.ReadFile(path(t, source, file))
		if err != nil || !json.Valid(data) {
			t.Errorf("%s of %s: %v", file, at, err)
		}
	}
	home := grafana.Environment["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
	if _, err := os.Stat(path(t, source, strings.TrimPrefix(home, at))); err != nil {
		t.Errorf("the first dashboard: %v", err)
	}
}
