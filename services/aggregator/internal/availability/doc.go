// Package availability writes the Available condition of APIServices.
//
// Conditions, reasons and messages are kube-aggregator's, for people and
// programs read them: a local APIService is always available; a remote one is if
// its Service exists, listens on the port and has an endpoint, and if the server
// behind it answers for the group-version.
//
// What is checked when is our own. An APIService is checked when it or anything
// it depends on changes, when a request could not reach its server, and now and
// then; one that is not available is checked more often, so that it is back within
// seconds. A check asks once, and several times only if that fails: behind a
// cluster IP one replica of many may be the one that is down.
package availability
