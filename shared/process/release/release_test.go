package release

import (
	"strings"
	"testing"

	"k8s.io/apiserver/pkg/endpoints/deprecation"
	"k8s.io/component-base/version"
)

func TestVersionIsComplete(t *testing.T) {
	t.Logf("from the linker: %t", Linked)
	info := version.Get()
	if info.GitVersion != GitVersion || info.Major != Major || info.Minor != Minor {
		t.Errorf("version.Get() = %+v, want %s", info, GitVersion)
	}
	if _, _, err := deprecation.MajorMinor(info); err != nil {
		t.Errorf("deprecation cannot use the version: %v", err)
	}
	if !strings.HasPrefix(GitVersion, "v"+Major+"."+Minor+".") || Major+"."+Minor != version.DefaultKubeBinaryVersion {
		t.Errorf("%s, %s.%s and component-base's %s disagree", GitVersion, Major, Minor, version.DefaultKubeBinaryVersion)
	}
}
