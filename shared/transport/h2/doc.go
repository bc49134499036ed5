// Package h2 serves HTTP/2 (RFC 9113) for an [http.Server] in place of Go's own server.
//
// [Configure] installs it, and a [Listener] below TLS makes large writes cheaper. [ConfigureGo]
// installs the server of golang.org/x/net/http2 with the same [Options] instead. The response
// writers of this package also have the methods TryWrite, End and Abort, which a server of
// watches uses without a goroutine per watch.
//
// In Go's server, one goroutine per connection schedules all frames and another one writes
// them: an event for a watch, and each half of a small response, waits twice for a processor.
// Here, the goroutine of a handler appends frames to the output of the connection and writes the
// output, including the frames of other handlers, unless another goroutine is writing. A hundred
// watches of a connection that wake up together share TLS records and system calls, and a small
// response is a single record.
//
// # Goroutines
//
// The goroutine that [http.Server] starts for a connection reads frames and never writes: its
// replies (SETTINGS, PING, WINDOW_UPDATE, RST_STREAM) are written by the next writer, or by a
// goroutine that starts for this purpose. Each request has a goroutine for its handler. The
// mutex of the connection guards the state that both share; it is never locked during network
// I/O. Unflushed data is written after a millisecond. A handler that is writing to the network
// wakes up only if the connection ends; other handlers also wake up if their stream ends.
//
// # Fairness
//
// A large response fills the output up to 64 KiB and waits until it is written. Streams that wait
// for output room or for the window of the connection form a queue, and each takes one buffer in
// its turn. A stream that waits for its own window blocks no other stream. TryWrite never waits:
// it may fill further outputs up to 512 KiB, and fails beyond that.
//
// # Limits per client
//
// Bounded are: concurrent streams, the header lists of a request and of a connection, unread
// request bodies (by windows), running and queued handlers of reset streams, and control frames
// that require a reply. A client that exceeds a limit receives RST_STREAM, or GOAWAY with
// ENHANCE_YOUR_CALM. Priorities (RFC 9113, section 5.3) are parsed and ignored. Server push and
// extended CONNECT are not offered.
//
// Package golang.org/x/net/http2 parses the frames, and its package hpack compresses headers.
package h2
