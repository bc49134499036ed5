// Package release tells the process which Kubernetes release it implements.
//
// /version, the deprecation of API versions, metrics and client-go's user agent all read
// k8s.io/component-base/version. The linker sets its variables: kube-apiserver is built with -X
// flags, and the Makefile builds Triune in the same way. A plain "go build" or "go test" has no
// such flags; component-base then reports v0.0.0-master without major and minor version, on
// which the deprecation code fails. Importing this package sets the variables that the linker
// did not set, and nothing else.
package release

import (
	"strings"
	_ "unsafe" // for linkname

	"k8s.io/component-base/version"
)

const (
	// GitVersion is the Kubernetes release whose API and behavior Triune implements.
	GitVersion = "v1.36.3"
	// Major and Minor are the parts of GitVersion.
	Major, Minor = "1", "36"
)

// Commit is Triune's own commit, set by the linker; "unknown" in a plain build.
var Commit = "unknown"

// These variables have no setters. The linker uses the same names to set them.
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

// Linked reports whether the linker set the version.
var Linked = complete()

// complete runs during package initialization: after component-base, which it imports, and
// before every package that imports it.
func complete() (linked bool) {
	if strings.HasPrefix(gitCommit, "$Format") {
		// A placeholder of "git archive". Clients would take the commit for one of Kubernetes,
		// and Triune is not built from one.
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
