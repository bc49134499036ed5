package apiserver

import (
	"k8s.io/apimachinery/pkg/util/sets"
	utilwaitgroup "k8s.io/apimachinery/pkg/util/waitgroup"
	"k8s.io/apiserver/pkg/audit"
	genericapiserver "k8s.io/apiserver/pkg/server"
)

// Follower returns a copy of the configuration of a process's head for a tier
// that stands behind it in the same process. The tier authorizes, audits and
// limits with the head's parts, and leaves it to the head to run them: it does
// not listen, and ends nothing that it does not own.
func Follower(head *genericapiserver.Config) *genericapiserver.Config {
	g := *head
	g.SecureServing = nil
	g.NonLongRunningRequestWaitGroup = new(utilwaitgroup.SafeWaitGroup)
	g.WatchRequestWaitGroup = new(utilwaitgroup.RateLimitedSafeWaitGroup)
	g.ShutdownDelayDuration = 0
	g.DebugSocketPath = ""
	if head.AuditBackend != nil {
		g.AuditBackend = borrowedAudit{head.AuditBackend}
	}
	g.DisabledPostStartHooks = sets.NewString(head.DisabledPostStartHooks.UnsortedList()...)
	g.DisabledPostStartHooks.Insert(limitHooks...)
	g.HealthzChecks, g.LivezChecks, g.ReadyzChecks = nil, nil, nil
	g.AggregatedDiscoveryGroupManager = nil
	return &g
}

// borrowedAudit is an audit backend that somebody else runs.
type borrowedAudit struct{ audit.Backend }

// Run does nothing.
func (borrowedAudit) Run(<-chan struct{}) error { return nil }

// Shutdown does nothing.
func (borrowedAudit) Shutdown() {}
