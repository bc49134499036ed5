// Package remote reaches the servers behind remote APIServices: those whose
// spec.service names a Service instead of being nil.
//
// A [Backend] is one such APIService. It proxies requests that this tier has
// already authenticated, audited and authorized, and asserts the identity it
// found in the request's context as a front proxy (X-Remote-User, -Uid, -Group
// and -Extra-, over the proxy's own client certificate). Nothing a caller sent
// under those names survives, and neither does the caller's credential.
//
// Where a Service is reached is asked of a [Resolver] for every request, so a
// change of endpoints needs no new Backend. An address that cannot be dialled
// is tried last for a while, and the request goes to the next address if it has
// one: a dial that failed has not sent a byte.
//
// Connections are shared: [Transports] holds one HTTP transport per way of
// verifying a server (server name, CA bundle, or no verification), and replaces
// them when the proxy's client certificate changes on disk, so that no
// request rides on a connection that was opened under an expired certificate.
//
// Everything here is safe for concurrent use.
package remote
