// Package inprocess lets an HTTP client call an [http.Handler] of the same
// process: no socket, no TLS, no second copy of the body in kernel buffers.
//
// [Transport] is the [http.RoundTripper]; [Config] wraps it for client-go, so
// that clientsets and informers of one tier reach another tier, or their own,
// when all of them live in one process. What either side observes is what it
// would observe over HTTP/2:
//
//   - The handler runs in a goroutine of its own. Its context carries none of
//     the client's values, only the client's cancellation: a request made from
//     inside another request must not inherit its user, audit event or deadline.
//   - The body is streamed. What the handler writes waits in a buffer of at most
//     64 KiB until it flushes, fills it, or returns; a larger write is read by the
//     client out of the handler's own slice. A handler that writes faster than
//     its client reads is held back.
//   - A client that goes away (context, or closing the body early) cancels the
//     handler's context and fails its reads and writes.
//   - A handler that panics, with [http.ErrAbortHandler] or anything else, is a
//     broken connection: the process lives on, the client gets
//     [io.ErrUnexpectedEOF] and never a body that looks complete.
//
// Upgrades are refused with an error, for there is no connection to take over;
// 1xx responses, trailers and deadlines of [http.ResponseController] do not exist.
//
// Every handler goroutine ends when its handler returns, as in [http.Server];
// whoever shuts a handler down waits for its requests in flight, whichever way
// they came.
package inprocess
