// Package inspect describes a running installation to operators: its tiers and their
// replicas, who relays events, what the caches hold and how far they are behind, and which
// limits have been hit.
//
// Everything is read with the caller's own rights from what the servers publish: metrics, and
// the replicas behind a tier (/triune/next/). [Collect] asks for it and returns a [Report],
// which is written as JSON or by [Report.WriteText].
package inspect
