// Package nexttier forwards requests to the next tier.
//
// A [Proxy] is the [http.Handler] for requests that a tier does not own. [New] makes it from a
// [Config]; [Proxy.Run] finds the replicas of the next tier (fixed addresses, or the addresses of
// a DNS name) and probes them. The proxy may serve before Run, and must not serve after it. It is
// also a health check of the next tier.
//
// # Identity
//
// The context of a request must hold the authenticated user. The proxy asserts the user with
// front-proxy headers over mutual TLS. It removes all identity headers of the client and its
// credential: Authorization, and the bearer token that browsers send as a WebSocket protocol.
// Impersonate-* headers are forwarded, because the serving tier impersonates; the client's
// Connection header cannot remove them.
//
// With [Config.ForwardCredentials], the context must also hold the credential of the client. The
// proxy sends it instead of the user, and the next tier authenticates it; see package handover.
//
// # Connections
//
// Short requests share up to four HTTP/2 connections per replica. Streams (watches and followed
// logs) have separate connections, on which each may have at most 64 KiB of unread data. A
// further connection is opened when the others have as many streams as the server allows. A
// request to upgrade gets its own HTTP/1.1 connection.
//
// # Choice of the replica
//
// A request goes to the replica with the fewest requests of its kind in flight. Ready replicas
// come first, then those that answer, then all others: trying a replica that is down is better
// than failing. A replica is down after a failed dial or probe, and up after a successful one;
// while it is down it is probed several times per second.
//
// # Retries
//
// A request is sent again if it was certainly not processed: no connection could be made, or the
// server has said so (REFUSED_STREAM, or GOAWAY with a lower last stream; RFC 9113, sections 6.8
// and 8.7). It is also sent again if the connection broke, the method is safe (GET, HEAD,
// OPTIONS; RFC 9110, section 9.2.1) and no part of the response was forwarded. A POST, PUT, PATCH
// or DELETE that may have reached a server is never sent again. For retries, up to 64 KiB of a
// body are retained; a longer body is not sent again.
//
// # Limits of requests in flight
//
// The capacity is three times [Config.MaxInFlight]. A user may have another request in flight
// while it has less than half of the free capacity, and a group of users (nodes, the
// ServiceAccounts of a namespace, all others) while it has less than the free capacity. A single
// user may thus have MaxInFlight requests, and there is always room for others. System components
// have a separate capacity of the same size. Unauthenticated clients have a separate tenth of it.
// The tiers' own requests have a quarter, divided by resource, because unauthenticated clients can
// cause token reviews. Members of system:masters are not limited.
//
// A request counts until its response has arrived completely, and a stream until its response
// begins. A client that has not read its response after a second counts as slow instead, if there
// is a free share of slow responses. This bounds memory: 64 KiB of each request and 256 KiB of
// each response in flight, and of some hundred slow ones.
//
// # Isolation of clients
//
// A client cannot close a connection that others use, or make their requests fail. The next tier
// does not end the connection of a front proxy because of a single response. Servers close
// connections with many reset streams (CVE-2023-44487), so a connection with maxResetStreams of
// them gets no more requests and is closed after the last response. Servers refuse requests on a
// connection with too many long headers, so such a connection gets no more requests either.
// Headers that the next tier would not accept are refused by the proxy.
//
// # Errors
//
// Clients get a metav1.Status that names the tier:
//
//	no replica available             503 ServiceUnavailable, Retry-After
//	connection broke, method safe    503 ServiceUnavailable, Retry-After
//	connection broke, method unsafe  503 ServiceUnavailable without Retry-After,
//	                                 with which client-go would repeat any
//	                                 request, including POST
//	deadline of the request passed   504 Timeout
//	response body broke off          the connection is aborted, so that the client
//	                                 does not take half a list for all of it
//	watch broke off                  it ends, so that the client resumes it
//	front-proxy certificate refused  503 InternalError, see below
//	too many requests in flight      429 TooManyRequests, Retry-After
//	header fields too large          431
//	no path (invalid in HTTP/2)      404 NotFound
//
// The next tier answers 401 if it does not trust the front-proxy certificate. Forwarding it would
// tell users that their credentials are invalid, and client-go and kubectl would discard them,
// although the installation is at fault. The authentication of the next tier marks such an
// answer; see package distrust. The proxy answers 503 instead, logs and counts the refusal, asks
// another replica and avoids this one while others accept the certificate. Every other 401 comes
// from behind authentication (a webhook, or a Pod or kubelet that is reached by proxy), or from a
// tier of a release without marks, and is forwarded. A tier without marks that refuses even a
// probe also results in 503, but then no POST is sent again.
package nexttier
