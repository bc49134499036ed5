package parity

import (
	"bytes"
	"fmt"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// metricsTraffic is what both servers are asked before their metrics are compared.
var metricsTraffic = []Request{
	{Do: "POST /api/v1/namespaces", Body: `{"metadata":{"name":"measured"}}`},
	{Do: "POST /api/v1/namespaces/measured/configmaps", Body: `{"metadata":{"name":"one"},"data":{"a":"1"}}`},
	{Do: "POST /api/v1/namespaces/measured/configmaps?dryRun=All", Body: `{"metadata":{"name":"dry"}}`},
	{Do: "POST /api/v1/namespaces/measured/configmaps", Body: `{"metadata":{"name":"one"}}`},
	{Do: "GET /api/v1/namespaces/measured/configmaps/one"},
	{Do: "GET /api/v1/namespaces/measured/configmaps/none"},
	{Do: "GET /api/v1/namespaces/measured/configmaps"},
	{Do: "GET /api/v1/namespaces/measured/configmaps?limit=1"},
	{Do: "GET /api/v1/namespaces/measured/configmaps?resourceVersion=0"},
	{Do: "GET /api/v1/namespaces/measured/configmaps?watch=true&resourceVersion=0&timeoutSeconds=5", Events: 1},
	{Do: "PUT /api/v1/namespaces/measured/configmaps/one", Body: `{"metadata":{"name":"one"},"data":{"a":"2"}}`},
	{Do: "PATCH /api/v1/namespaces/measured/configmaps/one", Body: `{"data":{"a":"3"}}`, Headers: map[string]string{"Content-Type": "application/merge-patch+json"}},
	{Do: "PATCH /api/v1/namespaces/measured/configmaps/applied?fieldManager=test", Body: `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"applied"}}`, Headers: map[string]string{"Content-Type": "application/apply-patch+yaml"}},
	{Do: "POST /api/v1/namespaces/measured/serviceaccounts", Body: `{"metadata":{"name":"robot"}}`},
	{Do: "POST /api/v1/namespaces/measured/serviceaccounts/robot/token", Body: `{"apiVersion":"authentication.k8s.io/v1","kind":"TokenRequest","spec":{}}`},
	{Do: "POST /api/v1/namespaces/measured/services", Body: `{"metadata":{"name":"front"},"spec":{"ports":[{"port":80}]}}`},
	{Do: "POST /api/v1/namespaces/measured/pods", Body: `{"metadata":{"name":"pod"},"spec":{"automountServiceAccountToken":false,"serviceAccountName":"robot","containers":[{"name":"c","image":"i"}]}}`},
	{Do: "GET /api/v1/namespaces/measured/pods/pod/log"},
	{Do: "POST /apis/authorization.k8s.io/v1/selfsubjectaccessreviews", Body: `{"apiVersion":"authorization.k8s.io/v1","kind":"SelfSubjectAccessReview","spec":{"resourceAttributes":{"verb":"get","resource":"pods"}}}`},
	{Do: "GET /api/v1/namespaces", User: "anonymous"},
	{Do: "GET /api/v1/namespaces", User: "alice"},
	{Do: "GET /api/v1/namespaces", User: "forged"},
	{Do: "POST /apis/apiextensions.k8s.io/v1/customresourcedefinitions", Body: `{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"gauges.measured.example"},"spec":{"group":"measured.example","scope":"Namespaced","names":{"plural":"gauges","kind":"Gauge"},"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}}]}}`},
	{Do: "GET /apis"},
	{Do: "GET /apis/apps/v1"},
	{Do: "GET /openapi/v2"},
	{Do: "GET /openapi/v3"},
	{Do: "GET /openapi/v3/apis/apps/v1"},
	{Do: "GET /healthz"},
	{Do: "GET /livez"},
	{Do: "GET /readyz"},
	{Do: "GET /version"},
	{Do: "GET /metrics/slis"},
	{Do: "DELETE /api/v1/namespaces/measured/configmaps/one"},
	{Do: "DELETE /api/v1/namespaces/measured/configmaps"},
}

// absentMetrics are those that have no meaning here; docs/divergences.md says why.
var absentMetrics = []string{
	"apiserver_flowcontrol_dispatch_r", "apiserver_flowcontrol_latest_s",
	"apiserver_flowcontrol_next_s_bounds", "apiserver_flowcontrol_next_discounted_s_bounds",
	"watch_cache_capacity", "apiserver_storage_events_received_total", "etcd_bookmark_total",
	"aggregator_openapi_v2_regeneration_count", "apiextensions_openapi_v2_regeneration_count", "apiextensions_openapi_v3_regeneration_count",
}

// absentQueues are the work queues of controllers that Triune has none of.
var absentQueues = []string{
	"APIServiceRegistrationController", "crd_autoregistration_controller", "DiscoveryController", "discovery-manager",
	"open_api_aggregation_controller", "open_api_v3_aggregation_controller", "crd_openapi_controller", "crd_openapi_v3_controller",
}

// TestMetrics compares the names, types, labels and buckets of the metrics after the same
// traffic. Those of the tiers are added up.
func TestMetrics(t *testing.T) {
	for _, peer := range []*Peer{peers.reference, peers.tested} {
		for _, r := range metricsTraffic {
			if _, err := peer.Send(t.Context(), r, nil); err != nil {
				t.Fatalf("%s: %v", r.Do, err)
			}
		}
	}
	explained, err := os.ReadFile("../../docs/divergences.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range slices.Concat(absentMetrics, absentQueues) {
		if !bytes.Contains(explained, []byte("`"+name+"`")) {
			t.Errorf("docs/divergences.md does not say why %s is absent", name)
		}
	}
	reference, tested := scrape(t, peers.reference), scrape(t, peers.tested)
	for _, name := range slices.Sorted(maps.Keys(reference)) {
		want, got := reference[name], tested[name]
		if got == nil && slices.Contains(absentMetrics, name) {
			continue
		}
		if got == nil {
			t.Errorf("%s is missing; kube-apiserver has %d series", name, want.series)
			continue
		}
		if want.kind != got.kind {
			t.Errorf("%s is a %s, want %s", name, got.kind, want.kind)
		}
		if !maps.Equal(want.labels, got.labels) {
			t.Errorf("%s has the labels %v, want %v", name, slices.Sorted(maps.Keys(got.labels)), slices.Sorted(maps.Keys(want.labels)))
		}
		if !maps.Equal(want.buckets, got.buckets) {
			t.Errorf("%s has the buckets %v, want %v", name, slices.Sorted(maps.Keys(got.buckets)), slices.Sorted(maps.Keys(want.buckets)))
		}
	}
	for name := range reference["workqueue_depth"].values["name"] {
		if !tested["workqueue_depth"].values["name"][name] && !slices.Contains(absentQueues, name) {
			t.Errorf("there is no work queue %s", name)
		}
	}
}

// TestRequestMetrics compares how requests are counted that only clients make.
func TestRequestMetrics(t *testing.T) {
	const counter = "apiserver_request_total"
	var counts [2]map[string]float64
	for i, peer := range []*Peer{peers.reference, peers.tested} {
		counts[i] = map[string]float64{}
		before := requestCounts(t, peer, counter)
		for _, r := range metricsTraffic {
			if _, err := peer.Send(t.Context(), r, nil); err != nil {
				t.Fatalf("%s: %v", r.Do, err)
			}
		}
		for series, count := range requestCounts(t, peer, counter) {
			more := count - before[series]
			if strings.Contains(series, "subresource:openapi/") {
				more = min(more, 1) // servers read these documents themselves, too
			}
			if more > 0 {
				counts[i][series] = more
			}
		}
	}
	if diff := cmp.Diff(counts[0], counts[1]); diff != "" {
		t.Errorf("(-kube-apiserver +tested):\n%s", diff)
	}
}

// requestCounts returns a counter's series of requests that the server does not make itself.
func requestCounts(t *testing.T, peer *Peer, name string) map[string]float64 {
	t.Helper()
	counts := map[string]float64{}
	for _, m := range scrape(t, peer)[name].metrics {
		labels := map[string]string{}
		for _, label := range m.Label {
			labels[label.GetName()] = label.GetValue()
		}
		// Tiers poll each other's readyz, and documents, of which they are answered 304.
		own := labels["subresource"] == "/readyz" || labels["code"] == "304"
		if labels["resource"] == "" && !own || labels["resource"] == "configmaps" || labels["group"] == "measured.example" {
			counts[fmt.Sprint(labels)] += m.Counter.GetValue()
		}
	}
	return counts
}

// family describes a family of metrics over all its series and servers.
type family struct {
	kind    dto.MetricType
	metrics []*dto.Metric
	series  int
	labels  map[string]bool
	buckets map[float64]bool
	values  map[string]map[string]bool // by label
}

func scrape(t *testing.T, peer *Peer) map[string]*family {
	t.Helper()
	all := map[string]*family{}
	c := peer.Cluster
	for _, tier := range c.ServingTiers() {
		for i := range c.Replicas(tier) {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, c.ReplicaURL(tier, i)+"/metrics", nil)
			if err != nil {
				t.Fatal(err)
			}
			resp, err := peer.clients["admin"].Do(req)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			if resp.StatusCode != http.StatusOK {
				t.Fatalf("%s: status %d", req.URL, resp.StatusCode)
			}
			parser := expfmt.NewTextParser(model.UTF8Validation)
			families, err := parser.TextToMetricFamilies(resp.Body)
			if err != nil {
				t.Fatalf("%s: %v", req.URL, err)
			}
			for name, f := range families {
				add(all, name, f)
			}
		}
	}
	return all
}

func add(all map[string]*family, name string, f *dto.MetricFamily) {
	known := all[name]
	if known == nil {
		known = &family{kind: f.GetType(), labels: map[string]bool{}, buckets: map[float64]bool{}, values: map[string]map[string]bool{}}
		all[name] = known
	}
	known.series += len(f.Metric)
	known.metrics = append(known.metrics, f.Metric...)
	for _, m := range f.Metric {
		for _, label := range m.Label {
			known.labels[label.GetName()] = true
			if known.values[label.GetName()] == nil {
				known.values[label.GetName()] = map[string]bool{}
			}
			known.values[label.GetName()][label.GetValue()] = true
		}
		for _, bucket := range m.Histogram.GetBucket() {
			known.buckets[bucket.GetUpperBound()] = true
		}
	}
}
