package eventlog

import (
	"strings"
	"testing"

	"triune.dev/shared/storage/kv"
)

// holding returns the number of ranges that contain a key.
func holding(ranges []kv.KeyRange, key string) (n int) {
	for _, r := range ranges {
		if key >= r.Key && key < r.End {
			n++
		}
	}
	return n
}

// Every key is in the ranges of one tier, the tier of its route. The keys of an unknown
// resource without a group are not core's.
func TestRangesMatchRoutes(t *testing.T) {
	routes := NewRoutes("triune", "/registry")
	keys := []string{
		"apiregistration.k8s.io/apiservices/v1.apps", "apiregistration.k8s.io/widgets/a", "apiregistration.k8s.io", "apiregistration.k8s.io/",
		"apiextensions.k8s.io/customresourcedefinitions/widgets.example.com", "a.b/c", "zz.z/c/d", "0.0/x/y", "~/x",
	}
	for _, segment := range builtInResources {
		if strings.Contains(segment, ".") {
			t.Errorf("%s has a dot", segment)
		}
		keys = append(keys, segment+"/", segment+"/ns/name", segment+"/\xff")
		// Groups that sort just before and just after it.
		keys = append(keys, segment+".example.com/things/a", segment+"-a.b/c/d", segment+"0.b/c/d", segment[:len(segment)-1]+".z/c/d")
	}
	for _, below := range keys {
		key := routes.Prefix() + below
		want := routes.Route(key).Tier
		if first, _, _ := strings.Cut(below, "/"); want == Core && strings.HasPrefix(first, "~") {
			want = Extensions
		}
		for _, tier := range Tiers {
			n := 0
			if tier == want {
				n = 1
			}
			if got := holding(routes.Ranges(tier), key); got != n {
				t.Errorf("%s is in %d ranges of %s, want %d", key, got, tier, n)
			}
			if got := holding(routes.watchedRanges(tier), key); got < n || tier != Core && got != n {
				t.Errorf("%s is in %d ranges that a reader of %s watches", key, got, tier)
			}
		}
	}
	for _, tier := range Tiers {
		for i, r := range routes.Ranges(tier) {
			if r.Key >= r.End || i > 0 && r.Key < routes.Ranges(tier)[i-1].End {
				t.Errorf("range %d of %s: %+v", i, tier, r)
			}
			for _, outside := range []string{"/registry", "/registry0", "/registryx/pods/", "/triune/eventlog/"} {
				if holding([]kv.KeyRange{r}, outside) > 0 {
					t.Errorf("range %d of %s has %s", i, tier, outside)
				}
			}
		}
	}
}
