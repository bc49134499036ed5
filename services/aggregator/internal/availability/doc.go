// Package availability updates the condition Available of APIServices.
//
// Make a [Controller] with [New] and run it with [Controller.RunLocal] and [Controller.RunRemote];
// [Controller.Recheck] asks for an early check. Conditions, reasons and messages are those of kube-aggregator: a local APIService is
// always available, and a remote one is if its Service exists, has the port and an endpoint, and if
// the server answers for the group-version.
//
// The schedule differs from kube-aggregator. An APIService is checked when it or an object that it
// depends on changes, when a request could not reach its server, and periodically: more often
// while it is not available, so that it recovers within seconds. A check probes once, and several
// times only if that fails, because only one of the replicas behind a cluster IP may be down.
package availability
