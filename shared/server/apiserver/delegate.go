package apiserver

import (
	"k8s.io/apimachinery/pkg/util/sets"
	utilwaitgroup "k8s.io/apimachinery/pkg/util/waitgroup"
	"k8s.io/apiserver/pkg/audit"
	genericapiserver "k8s.io/apiserver/pkg/server"
)

// DelegateConfig returns the configuration of a tier behind head in the same process. The
// tier authorizes, audits and limits requests with the parts of head, which runs them. It
// does not listen, and shuts down nothing that head owns.
func DelegateConfig(head *genericapiserver.Config) *genericapiserver.Config {
	g := *head
	g.SecureServing = nil
	g.NonLongRunningRequestWaitGroup = new(utilwaitgroup.SafeWaitGroup)
	g.WatchRequestWaitGroup = new(utilwaitgroup.RateLimitedSafeWaitGroup)
	g.ShutdownDelayDuration = 0
	g.DebugSocketPath = ""
	if head.AuditBackend != nil {
		g.AuditBackend = sharedAudit{head.AuditBackend}
	}
	g.DisabledPostStartHooks = sets.NewString(head.DisabledPostStartHooks.UnsortedList()...)
	g.DisabledPostStartHooks.Insert(limitHooks...)
	g.HealthzChecks, g.LivezChecks, g.ReadyzChecks = nil, nil, nil
	g.AggregatedDiscoveryGroupManager = nil
	return &g
}

// sharedAudit is an audit backend that another tier runs.
type sharedAudit struct{ audit.Backend }

// Run does nothing.
func (sharedAudit) Run(<-chan struct{}) error { return nil }

// Shutdown does nothing.
func (sharedAudit) Shutdown() {}
