package deploy

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	"sigs.k8s.io/yaml"
)

// scaledBy returns the metrics of Pods that the chart's HorizontalPodAutoscalers use, by
// tier, each as a selector of Prometheus.
func scaledBy(t *testing.T) map[string][]string {
	t.Helper()
	var set []string
	for _, tier := range tierServices {
		set = append(set, "--set="+tier+".autoscaling.enabled=true")
	}
	all := map[string][]string{}
	for document := range strings.SplitSeq(helm(t).must(t, append([]string{"template", "t", chart(t)}, set...)...), "\n---\n") {
		var scaler autoscalingv2.HorizontalPodAutoscaler
		if !strings.Contains(document, "kind: HorizontalPodAutoscaler\n") {
			continue
		}
		if err := yaml.UnmarshalStrict([]byte(document), &scaler); err != nil {
			t.Fatal(err)
		}
		tier := scaler.Labels["app.kubernetes.io/component"]
		for _, metric := range scaler.Spec.Metrics {
			if metric.Pods == nil {
				t.Errorf("%s is scaled by a metric of type %s", tier, metric.Type)
				continue
			}
			matchers := ""
			if selector := metric.Pods.Metric.Selector; selector != nil {
				for _, name := range slices.Sorted(maps.Keys(selector.MatchLabels)) {
					matchers += fmt.Sprintf("%s=%q,", name, selector.MatchLabels[name])
				}
			}
			all[tier] = append(all[tier], metric.Pods.Metric.Name+"{"+matchers+"}")
		}
	}
	for _, tier := range tierServices {
		if len(all[tier]) < 2 {
			t.Errorf("%s is scaled by %v", tier, all[tier])
		}
	}
	return all
}

// TestAutoscalingIsDocumented checks that the rule for prometheus-adapter in
// deploy/README.md has every metric that the chart uses.
func TestAutoscalingIsDocumented(t *testing.T) {
	data, err := os.ReadFile(path(t, "deploy", "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, rule, ok := strings.Cut(string(data), "seriesQuery: ")
	if !ok {
		t.Fatal("deploy/README.md has no rule for the adapter")
	}
	rule, _, _ = strings.Cut(rule, "\n")
	for tier, selectors := range scaledBy(t) {
		for _, selector := range selectors {
			if name, _, _ := strings.Cut(selector, "{"); !strings.Contains(rule, name) {
				t.Errorf("%s is scaled by %s, which is not in the rule", tier, name)
			}
		}
	}
}
