// Package nexttier passes requests on to the next tier.
//
// A [Proxy] is the http.Handler that a tier calls for what it does not own. It
// finds the replicas of the next tier (fixed addresses, or the addresses behind
// a DNS name), keeps connections to them, and sends each request to one of them.
//
// # Who is asking
//
// The request's context must hold the authenticated user. The proxy asserts it
// with front-proxy headers over mutual TLS; every identity header that came in
// is removed first, and so is the credential: Authorization, and the bearer
// token that browsers put among the WebSocket protocols. Impersonate-* headers
// travel on, for the tier that serves a request is the one that impersonates,
// and no Connection header can have them removed on the way.
//
// With [Config.HandOver] the context must hold the credential of the client, too. The
// proxy hands it over in place of the user, and the next tier examines it: see package
// handover.
//
// # Connections
//
// Short requests share up to four HTTP/2 connections to a replica. Streams
// (watches, followed logs) have connections of their own, on which a stream may
// hold at most 64 KiB that its client has not read; when a connection has as
// many streams as the server allows, another one is opened. Requests to upgrade
// get an HTTP/1.1 connection each.
//
// # Which replica
//
// Per request, the replica with the least requests of that kind in flight, among
// those that are ready; if there is none, among those that answer; if there is
// none, among all: a replica that is down is tried anyhow rather than not
// answering. A replica goes down when a connection cannot be made or a probe
// fails, and is up again with the first connection or probe that works; while it
// is down it is probed several times a second.
//
// # When a request is sent again
//
// Whenever it cannot have been processed: no connection could be made, or the
// server said so (REFUSED_STREAM, or GOAWAY with a smaller last stream, RFC 9113
// sections 6.8 and 8.7). Also when the connection broke and the method is safe
// (GET, HEAD, OPTIONS; RFC 9110 section 9.2.1) and no part of the response has
// been passed on. A POST, PUT, PATCH or DELETE that may have reached a server is
// never sent again. A body is kept for this up to 64 KiB, and not beyond.
//
// # Who may have how many requests in flight
//
// A user may have another one while it has less than half of what is free of three
// times [Config.MaxInFlight], and a group of users (nodes, the ServiceAccounts of a
// namespace, everyone else) while it has less than what is free. So one user alone
// may have MaxInFlight, and whatever some do, there is room for others. There are as
// many once more for the components of the cluster. Who is not authenticated has a
// tenth of that, which is nobody else's; the tiers' own requests have a quarter,
// divided by resource, because strangers can have tokens reviewed; system:masters is
// not limited.
//
// A request counts until its answer is here as a whole, a stream until it begins. A
// client that has not read the rest of an answer after a second holds a share of the
// slow answers instead, while there is one for it. So what waits in memory is
// bounded: 64 KiB of each request and 256 KiB of each answer in flight, and of some
// hundred slow ones.
//
// # Neighbours
//
// What one client does closes no connection that others use, and makes none of
// their requests fail. The next tier never ends a connection of a front proxy for
// one answer's sake. Servers end connections of which many streams are reset
// (CVE-2023-44487); so one with resetLimit such streams gets no more requests, and
// is closed when the last one has been answered. They refuse requests on one that holds
// many long headers; such a connection gets no more, either. Headers that the next tier
// would not accept are refused here.
//
// # What the client gets when it fails
//
// A metav1.Status that names the tier:
//
//	no replica to be had             503 ServiceUnavailable, Retry-After
//	connection broke, method safe    503 ServiceUnavailable, Retry-After
//	connection broke, method unsafe  503 ServiceUnavailable without Retry-After,
//	                                 because client-go repeats any request, POST
//	                                 too, that is answered with one
//	deadline of the request passed   504 Timeout
//	broken in the middle of a body   the connection is broken off (a client must
//	                                 not take half a list for the whole)
//	front-proxy certificate refused  503 InternalError, see below
//	too many requests in flight      429 TooManyRequests, Retry-After
//	header fields too large          431
//	no path, which HTTP/2 cannot say 404 NotFound
//
// The next tier answers 401 when it does not believe the front-proxy
// certificate. Passed on, this would tell users that their credentials are wrong,
// and client-go and kubectl would throw them away; it is this installation that
// is wrong. Such an answer is marked by the tier's authentication, see package
// distrust. It becomes a 503, the reason is logged and counted, another replica is
// asked, and this one is avoided while others believe. Every other 401 comes from
// behind authentication (a webhook, a pod or a kubelet that is reached by proxy), or
// from a tier of a release that did not mark; it is passed on as it is. Where such a
// tier refuses even a probe its 401 becomes a 503, too, but no POST is sent again.
package nexttier
