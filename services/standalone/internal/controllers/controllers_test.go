package controllers

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestResolve(t *testing.T) {
	all := []string{
		"bootstrap-signer-controller",
		"certificatesigningrequest-approving-controller", "certificatesigningrequest-cleaner-controller", "certificatesigningrequest-signing-controller",
		"clusterrole-aggregation-controller", "garbage-collector-controller", "namespace-controller", "resourcequota-controller",
		"root-ca-certificate-publisher-controller", "serviceaccount-controller", "serviceaccount-token-controller",
		"token-cleaner-controller", "ttl-after-finished-controller",
	}
	tests := map[string]struct {
		values, want []string
		err          string // part of the error
	}{
		"none":             {},
		"alias":            {values: []string{"namespace"}, want: []string{"namespace-controller"}},
		"name and alias":   {values: []string{"namespace-controller", "namespace"}, want: []string{"namespace-controller"}},
		"both of an alias": {values: []string{"root-ca", "root-ca-cert-publisher"}, want: []string{"root-ca-certificate-publisher-controller"}},
		"sorted":           {values: []string{"serviceaccount", "garbagecollector"}, want: []string{"garbage-collector-controller", "serviceaccount-controller"}},
		"all":              {values: []string{"all-generic"}, want: all},
		"all and one":      {values: []string{"namespace", "all-generic"}, want: all},
		"unknown":          {values: []string{"namespace", "gizmo"}, err: `--controllers: unknown controller "gizmo", known are `},
		"empty":            {values: []string{""}, err: `unknown controller ""`},
		"unsupported":      {values: []string{"deployment"}, err: `unknown controller "deployment"`},
		"star":             {values: []string{"*"}, err: `unknown controller "*"`},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := Resolve(test.values)
			if (err == nil) != (test.err == "") || (err != nil && !strings.Contains(err.Error(), test.err)) {
				t.Errorf("error %v, want %q", err, test.err)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// TestKnownCanBeResolved checks the names in the help of the flag and in errors.
func TestKnownCanBeResolved(t *testing.T) {
	known := Known()
	if !slices.IsSorted(known) || len(known) == 0 {
		t.Errorf("known are %v", known)
	}
	for _, name := range known {
		if got, err := Resolve([]string{name}); err != nil || len(got) == 0 {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
}
