// Package h2 speaks HTTP/2 (RFC 9113) for an [http.Server], in the place of Go's own.
//
// Go's server gives every frame to one goroutine of the connection, which has another
// one write it: an event to a watcher, and each half of a small answer, wait twice for
// a processor. Here the goroutine of a handler appends its frames to the output of its
// connection itself, and writes what is there, its own frames and those of others, if
// nobody does so at the moment. A hundred watches that share a connection and are woken
// together share records of TLS and system calls; an answer to a single request is one
// record.
//
// # Who does what
//
// The goroutine that [http.Server] starts for a connection reads frames and never writes:
// what it has to answer (SETTINGS, PING, windows, resets) is written by whoever writes
// next, or by a goroutine that is started for it. Each request has a goroutine for its
// handler. Everything that both sides know is under the mutex of the connection, which
// nobody holds while writing to the network. What a handler has not flushed is written
// within a millisecond, if nothing follows. A handler that writes to the network is woken
// by the end of the connection alone; others by their stream's, too. While a handler sleeps
// others can write for it, if nobody would have to wait for that (TryWrite of a response).
//
// # Fairness
//
// A large answer fills the output to 64 KiB and waits until that is written. Who waits for
// room in the output, or for the connection's window, waits in line, and takes what one
// buffer holds when it is its turn. Who waits for the window of its own stream keeps
// nobody else waiting. What is written for handlers that sleep waits for nothing: it fills
// further outputs, 256 KiB in all, and is refused beyond.
//
// # What a client may cost
//
// Streams at once, header lists of a request and of all that a connection has, bodies that
// are not read (the windows), handlers of streams that the client has reset, waiting ones
// among them, and frames that only ask for an answer are all bounded; a client that goes beyond is told so by RST_STREAM or by
// GOAWAY with ENHANCE_YOUR_CALM. Priorities (RFC 9113, section 5.3) are read and not
// followed. Server push and CONNECT with :protocol are not offered.
//
// Frames are parsed by golang.org/x/net/http2, headers compressed by its hpack.
package h2
