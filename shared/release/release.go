// Package release makes the process say which Kubernetes release it implements.
//
// /version, the deprecation of API versions, metrics and client-go's user agent
// all ask k8s.io/component-base/version. What that package knows comes from the
// linker: kube-apiserver is built with -X flags, and the Makefile builds ours in
// the same way. A plain "go build" or "go test" has no such flags, and
// component-base then answers v0.0.0-master with no major and minor version, on
// which the deprecation code fails. Importing this package fills in what the
// linker has left out, and nothing else.
package release

import (
	"strings"
	_ "unsafe" // for linkname

	"k8s.io/component-base/version"
)

const (
	// GitVersion is the Kubernetes release whose API and behaviour this is.
	GitVersion = "v1.36.3"
	// Major and Minor are the parts of GitVersion.
	Major, Minor = "1", "36"
)

// Commit is Triune's own commit, set by the linker; "unknown" in a plain build.
var Commit = "unknown"

// The variables have no setters. The linker would set them by these very names.
var (
	//go:linkname gitMajor k8s.io/component-base/version.gitMajor
	gitMajor string
	//go:linkname gitMinor k8s.io/component-base/version.gitMinor
	gitMinor string
	//go:linkname gitVersion k8s.io/component-base/version.gitVersion
	gitVersion string
	//go:linkname gitCommit k8s.io/component-base/version.gitCommit
	gitCommit string
	//go:linkname gitTreeState k8s.io/component-base/version.gitTreeState
	gitTreeState string
)

// Linked tells whether the version came from the linker.
var Linked = complete()

// complete runs while packages are initialized: after component-base, which it
// imports, and before anything that imports it.
func complete() (linked bool) {
	if strings.HasPrefix(gitCommit, "$Format") {
		// What "git archive" would have replaced. The commit is Kubernetes' to
		// clients, and this is not built from one.
		gitCommit = ""
	}
	if gitMajor != "" {
		return true
	}
	gitMajor, gitMinor, gitVersion, gitTreeState = Major, Minor, GitVersion, "archive"
	if err := version.SetDynamicVersion(GitVersion); err != nil {
		panic("release: " + err.Error())
	}
	return false
}
