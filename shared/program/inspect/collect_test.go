package inspect

import (
	"strings"
	"testing"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// TestWatchesOfResources checks that a watch counts for the resource of its group: built-in
// ones are stored without a group, and two custom resources may share a name.
func TestWatchesOfResources(t *testing.T) {
	parser := expfmt.NewTextParser(model.UTF8Validation)
	f, err := parser.TextToMetricFamilies(strings.NewReader(`# TYPE apiserver_longrunning_requests gauge
apiserver_longrunning_requests{verb="WATCH",group="",resource="pods"} 1
apiserver_longrunning_requests{verb="CONNECT",group="",resource="pods"} 16
apiserver_longrunning_requests{verb="WATCH",group="apps",resource="deployments"} 2
apiserver_longrunning_requests{verb="WATCH",group="a.example.com",resource="widgets"} 4
apiserver_longrunning_requests{verb="WATCH",group="b.example.com",resource="widgets"} 8
# TYPE triune_bytecache_objects gauge
triune_bytecache_objects{resource="pods"} 1
triune_bytecache_objects{resource="deployments"} 1
triune_bytecache_objects{resource="a.example.com/widgets"} 1
triune_bytecache_objects{resource="b.example.com/widgets"} 1
`))
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]int64{"pods": 1, "deployments": 2, "a.example.com/widgets": 4, "b.example.com/widgets": 8}
	all := families(f).resources(families(f).watches())
	for _, r := range all {
		if r.Watches != want[r.Name] {
			t.Errorf("%s has %d watches, want %d", r.Name, r.Watches, want[r.Name])
		}
	}
	if len(all) != len(want) {
		t.Errorf("%d resources, want %d", len(all), len(want))
	}
}
