// Package loopback lets an HTTP client call an [http.Handler] in the same process: no socket,
// no TLS, no second copy of the body in kernel buffers.
//
// [Transport] is the [http.RoundTripper]. [Config] wraps it for client-go, so that clientsets
// and informers of one tier can call another tier, or their own, in the same process. Both are
// safe for concurrent use. Each side observes what it would observe over HTTP/2:
//
//   - The handler runs in its own goroutine. Its context carries none of the client's values,
//     only the client's cancellation: a request made while another one is served must not
//     inherit its user, audit event or deadline.
//   - The body is streamed. What the handler writes waits in a buffer of at most 64 KiB until
//     it flushes, fills the buffer, or returns; the client reads a larger write directly from
//     the handler's slice. A handler that writes faster than its client reads is blocked.
//   - A client that goes away (by its context, or by closing the body early) cancels the
//     handler's context and makes its reads and writes fail.
//   - A panic of the handler, with [http.ErrAbortHandler] or anything else, breaks the
//     connection: the process continues, and the client gets [io.ErrUnexpectedEOF] instead of
//     a body that looks complete.
//
// Upgrades return an error, because there is no connection to hijack. 1xx responses, trailers
// and deadlines of [http.ResponseController] are not supported.
//
// As in [http.Server], the goroutine of a handler ends when the handler returns. To shut a
// handler down, wait for its requests in flight, wherever they came from.
package loopback
