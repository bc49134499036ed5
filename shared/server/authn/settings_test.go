package authn

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	genericoptions "k8s.io/apiserver/pkg/server/options"
)

// TestTiersRemoveTheHeadersThatCoreTrusts: a tier that does not remove the identity headers
// that core trusts contradicts core, even if it trusts no front proxy itself.
func TestTiersRemoveTheHeadersThatCoreTrusts(t *testing.T) {
	usual := genericoptions.RequestHeaderAuthenticationOptions{
		ClientCAFile: "ca.crt", UsernameHeaders: []string{"X-Remote-User"}, GroupHeaders: []string{"X-Remote-Group"}, ExtraHeaderPrefixes: []string{"X-Remote-Extra-"},
	}
	own := usual
	own.UsernameHeaders = []string{"X-Who"}
	otherCase := usual
	otherCase.UsernameHeaders = []string{"x-WHO"}
	withUID := usual
	withUID.UIDHeaders = []string{"X-Uid"}
	withoutCA := func(o genericoptions.RequestHeaderAuthenticationOptions) genericoptions.RequestHeaderAuthenticationOptions {
		o.ClientCAFile = ""
		return o
	}
	for name, c := range map[string]struct {
		core, tier genericoptions.RequestHeaderAuthenticationOptions
		want       []string
	}{
		"alike":                     {usual, usual, nil},
		"usual names without a CA":  {usual, genericoptions.RequestHeaderAuthenticationOptions{}, nil},
		"own names without a CA":    {own, withoutCA(own), nil},
		"core trusts no proxy":      {withoutCA(own), usual, nil},
		"core trusts other names":   {own, usual, []string{"aggregator has --requestheader-username-headers=x-remote-user, core has --requestheader-username-headers=x-who"}},
		"the same, without a CA":    {own, genericoptions.RequestHeaderAuthenticationOptions{}, []string{"aggregator has --requestheader-username-headers=x-remote-user, core has --requestheader-username-headers=x-who"}},
		"names are in another case": {own, otherCase, nil},
		"core has no UID headers":   {usual, withUID, nil},
	} {
		t.Run(name, func(t *testing.T) {
			core, err := SharedFlags{Anonymous: true, RequestHeader: &c.core}.Settings()
			if err != nil {
				t.Fatal(err)
			}
			tier, err := (&Options{Anonymous: true, RequestHeader: c.tier}).Settings()
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, tier.Contradictions("aggregator", "core", core)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}
