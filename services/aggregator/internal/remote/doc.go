// Package remote connects to the servers behind remote APIServices, whose spec.service names a
// Service.
//
// A [Backend], made by [New] from an APIService and the shared [Network], proxies requests that
// this tier has already authenticated, audited and authorized. As a front proxy it asserts the
// user in the request's context with X-Remote-* headers over its client certificate, the
// [Identity]. It removes identity headers and the credential of the client.
//
// A [Resolver] is called for every request, so a change of endpoints needs no new Backend. An
// address that cannot be dialled is [Ejected]: it is tried last for a while. The request then goes
// to the next address, because a failed dial has not sent anything.
//
// [Transports] holds one HTTP transport per way to verify a server (server name, CA bundle, or no
// verification). It replaces them when the client certificate changes, so that no request uses a
// connection with an expired certificate.
//
// All types are safe for concurrent use.
package remote
