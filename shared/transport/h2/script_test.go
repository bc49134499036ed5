package h2

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http/httpguts"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// narrowBounds let short scripts reach the limits.
var narrowBounds = Options{MaxConcurrentStreams: 4, MaxUploadPerStream: 256 << 10, IdleTimeout: time.Minute}

// narrowHeader is [http.Server.MaxHeaderBytes].
const narrowHeader = 8 << 10

// scriptResult is the result of a script.
type scriptResult struct {
	steps           []step
	requests        []string // of all handlers, with complete bodies
	sent, allocated int
}

// step is the state after a frame.
type step struct {
	Requests []string // passed to handlers
	Refused  []uint32 // streams
	Ended    string   // why the connection ended
}

// maxFrames is less than the limit of queued requests, which differs by one between the servers.
const maxFrames = 20

// parseScript parses a script. Types beyond RFC 9113 become one of the first unknown types or
// PRIORITY_UPDATE, stream 255 stands for the maximum, and a length from 240 on is in KiB, up to the
// default maximum frame size. A short payload is filled with zeros.
func parseScript(script []byte) [][]byte {
	var frames [][]byte
	for len(script) >= 4 && len(frames) < maxFrames {
		kind, flags, id, size := script[0]%12, script[1], uint32(script[2]), int(script[3])
		script = script[4:]
		if kind == 11 {
			kind = 0x10
		}
		if id == 255 {
			id = 1<<31 - 1
		}
		if size >= 240 {
			size = (size - 239) << 10
		}
		frame := appendFrameHeader(nil, size, http2.FrameType(kind), http2.Flags(flags), id)
		payload := make([]byte, size)
		script = script[copy(payload, script):]
		frames = append(frames, append(frame, payload...))
	}
	return frames
}

func describe(frames [][]byte) string {
	var b strings.Builder
	for _, frame := range frames {
		fmt.Fprintf(&b, "[%v %#x %d %d %q] ", http2.FrameType(frame[3]), frame[4], binary.BigEndian.Uint32(frame[5:]), len(frame)-frameHeader, clip(string(frame[frameHeader:])))
	}
	return b.String()
}

// serveGo is Go's server on a connection without TLS.
//
//nolint:staticcheck // as in ConfigureGo
func serveGo(t *testing.T, hs *http.Server, nc net.Conn) {
	o := narrowBounds.xnetServer()
	if err := http2.ConfigureServer(hs, o); err != nil {
		t.Error(err)
		return
	}
	o.ServeConn(nc, &http2.ServeConnOpts{BaseConfig: hs, Handler: hs.Handler})
}

func serveOurs(_ *testing.T, hs *http.Server, nc net.Conn) {
	s := &server{Options: narrowBounds, http: hs, conns: map[*conn]struct{}{}}
	s.serve(nc, nc, nil, hs.Handler)
}

// runScript sends frames to a server, each after the effect of the previous one.
func runScript(t *testing.T, frames [][]byte, serve func(*testing.T, *http.Server, net.Conn)) *scriptResult {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	var o scriptResult
	h := &recorder{settled: make(chan struct{})}
	client, server := net.Pipe()
	over := make(chan struct{})
	go func() {
		defer close(over)
		serve(t, &http.Server{Handler: h, MaxHeaderBytes: narrowHeader, ErrorLog: log.New(io.Discard, "", 0)}, server)
	}()
	r := &reader{refused: map[uint32]bool{}}
	read := make(chan struct{})
	go func() {
		defer close(read)
		r.read(client)
	}()
	write := func(p []byte) bool {
		_, err := client.Write(p)
		synctest.Wait()
		o.sent += len(p)
		return err == nil
	}
	begin := append([]byte(http2.ClientPreface), appendSettings(nil)...)
	if !write(appendSettingsAck(begin)) {
		t.Fatal("the connection has not begun")
	}
	for _, frame := range frames {
		ok := write(frame)
		s := step{Requests: h.so(), Ended: r.ended()}
		s.Refused = r.refusals()
		if !ok && s.Ended == "" {
			s.Ended = "closed"
		}
		o.steps = append(o.steps, s)
		if s.Ended != "" {
			break
		}
	}
	close(h.settled)
	synctest.Wait()
	_ = client.Close()
	<-over
	<-read
	time.Sleep(4 * idleTimeout) // of the bubble: handlers whose bodies do not come end, and idle workers leave
	o.requests = h.all()
	runtime.ReadMemStats(&after)
	o.allocated = int(after.TotalAlloc - before.TotalAlloc)
	return &o
}

// recorder is a handler that records its requests, and reads and answers them once all frames were
// sent.
type recorder struct {
	settled chan struct{}

	mu       sync.Mutex
	requests []string // guarded by mu
	bodies   []string // guarded by mu
}

func (h *recorder) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	// Go's server announces forbidden trailers without a value.
	for key := range r.Trailer {
		if !httpguts.ValidTrailerHeader(key) {
			delete(r.Trailer, key)
		}
	}
	if len(r.Trailer) == 0 {
		r.Trailer = nil
	}
	h.mu.Lock()
	n := len(h.requests)
	h.requests = append(h.requests, dump(r))
	h.bodies = append(h.bodies, "")
	h.mu.Unlock()
	<-h.settled
	body, err := io.ReadAll(r.Body)
	said := "has not come"
	if err == nil {
		said = fmt.Sprintf("%q %q", body, r.Trailer)
	}
	h.mu.Lock()
	h.bodies[n] = said
	h.mu.Unlock()
	_, _ = w.Write(body)
}

func (h *recorder) so() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.requests)
}

// all returns the requests with their bodies.
func (h *recorder) all() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	all := slices.Clone(h.requests)
	for i := range all {
		all[i] += h.bodies[i]
	}
	slices.Sort(all) // queued requests start together
	return all
}

// reader records the frames of a server.
type reader struct {
	mu      sync.Mutex
	refused map[uint32]bool // streams, guarded by mu
	why     string          // guarded by mu
}

func (r *reader) read(client net.Conn) {
	framer := http2.NewFramer(nil, client)
	decoder := hpack.NewDecoder(4<<10, nil)
	for {
		f, err := framer.ReadFrame()
		r.mu.Lock()
		switch f := f.(type) {
		case *http2.RSTStreamFrame:
			if f.ErrCode != http2.ErrCodeNo {
				r.refused[f.StreamID] = true
			}
		case *http2.HeadersFrame:
			fields, err := decoder.DecodeFull(f.HeaderBlockFragment())
			if err != nil {
				r.why = err.Error()
			} else if len(fields) > 0 && fields[0].Value >= "400" {
				r.refused[f.StreamID] = true
			}
		case *http2.GoAwayFrame:
			if r.why == "" {
				r.why = f.ErrCode.String()
			}
			// The RFC allows both for closed streams (sections 5.1 and 5.1.1).
			if f.ErrCode == http2.ErrCodeStreamClosed {
				r.why = http2.ErrCodeProtocol.String()
			}
		}
		if err != nil && r.why == "" && !errors.Is(err, io.ErrClosedPipe) {
			r.why = "closed"
		}
		r.mu.Unlock()
		if err != nil {
			return
		}
	}
}

func (r *reader) ended() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.why
}

func (r *reader) refusals() []uint32 {
	r.mu.Lock()
	defer r.mu.Unlock()
	var ids []uint32
	for id := range r.refused {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

// frame encodes a frame of a script.
func frame(kind http2.FrameType, flags http2.Flags, id byte, payload ...byte) []byte {
	return append([]byte{byte(kind), byte(flags), id, byte(len(payload))}, payload...)
}

// frameSeeds returns scripts that reach differences between the servers, or did so.
func frameSeeds() [][]byte {
	const end, endHeaders = http2.FlagHeadersEndStream, http2.FlagHeadersEndHeaders
	indexed := []byte{0x82, 0x87, 0x84, 0x41, 1, 'a'} // GET https / a
	fields := func(fields ...string) []byte {
		p := &peer{}
		p.encoder = hpack.NewEncoder(&p.block)
		for i := 0; i < len(fields); i += 2 {
			_ = p.encoder.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1], Sensitive: true}) // to a buffer
		}
		return append(slices.Clone(indexed), p.block.Bytes()...)
	}
	get := func(id byte, more ...string) []byte {
		return frame(http2.FrameHeaders, end|endHeaders, id, fields(more...)...)
	}
	post := func(id byte, more ...string) []byte {
		return frame(http2.FrameHeaders, endHeaders, id, fields(more...)...)
	}
	data := func(id byte, flags http2.Flags, p string) []byte {
		return frame(http2.FrameData, flags, id, []byte(p)...)
	}
	reset := func(id byte) []byte { return frame(http2.FrameRSTStream, 0, id, 0, 0, 0, 8) }
	window := func(id byte, n uint32) []byte {
		return frame(http2.FrameWindowUpdate, 0, id, binary.BigEndian.AppendUint32(nil, n)...)
	}
	settings := func(flags http2.Flags, pairs ...uint32) []byte {
		var p []byte
		for i := 0; i < len(pairs); i += 2 {
			p = binary.BigEndian.AppendUint16(p, uint16(pairs[i]))
			p = binary.BigEndian.AppendUint32(p, pairs[i+1])
		}
		return frame(http2.FrameSettings, flags, 0, p...)
	}
	script := func(frames ...[]byte) []byte { return slices.Concat(frames...) }
	return [][]byte{
		get(1),
		script(get(1), get(3), get(5), get(7), get(9), reset(3), get(11)),
		script(post(1), data(1, 0, "hel"), data(1, http2.FlagDataEndStream, "lo"), get(3)),
		script(post(1, "content-length", "2"), data(1, http2.FlagDataEndStream, "hello"), get(3)),
		script(post(1, "content-length", "9"), data(1, http2.FlagDataEndStream, "hello"), get(3)),
		script(post(1, "trailer", "x-one, if-match"), data(1, 0, "hello"), frame(http2.FrameHeaders, end|endHeaders, 1, 0, 5, 'x', '-', 'o', 'n', 'e', 1, '1')),
		script(post(1), frame(http2.FrameHeaders, endHeaders, 1, 0, 1, 'x', 1, '1'), get(3)),
		script(get(1), data(1, 0, "late"), frame(http2.FrameHeaders, end|endHeaders, 1, indexed...), get(3)),
		script(post(1), frame(http2.FrameData, http2.FlagDataPadded, 1, 2, 'x', 0, 0), frame(http2.FrameData, http2.FlagDataPadded, 1, 9, 'x')),
		script(frame(http2.FrameHeaders, end, 1, indexed[:2]...), frame(http2.FrameContinuation, 0, 1), frame(http2.FrameContinuation, endHeaders, 1, indexed[2:]...)),
		script(frame(http2.FrameHeaders, end, 1, indexed[:2]...), frame(http2.FramePing, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)),
		script(frame(http2.FrameHeaders, end|endHeaders|http2.FlagHeadersPriority, 1, append([]byte{0, 0, 0, 1, 9}, indexed...)...), get(3)),
		script(frame(http2.FramePriority, 0, 3, 0, 0, 0, 3, 9), get(1), get(5)),
		script(frame(http2.FramePriority, 0, 5, 0, 0, 0, 3, 9), get(1)),
		script(post(1), window(1, 1<<31-1), get(3), window(0, 1<<31-1)),
		script(post(1), window(1, 0), get(3), window(0, 0)),
		script(window(1, 1)), script(reset(1)), script(data(1, 0, "x")), script(get(2)), script(get(3), get(1)),
		script(get(1), reset(1), reset(1), window(1, 1), data(1, 0, "x"), get(1)),
		script(settings(0, 4, 1<<31-1), post(1), window(1, 1), settings(0, 4, 1<<31)),
		script(settings(0, 3, 0, 4, 0, 5, 16384, 6, 100, 1, 0, 99, 1), get(1), settings(1), settings(1)),
		script(settings(0, 4, 1, 4, 2), get(1)), script(settings(0, 2, 2)), script(settings(0, 5, 1)),
		script(frame(http2.FrameGoAway, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0), get(1)),
		script(get(1), frame(http2.FrameGoAway, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2), get(3)),
		script(frame(http2.FramePushPromise, endHeaders, 1, 0, 0, 0, 2, 0x82)), script(frame(http2.FramePing, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0)),
		script(frame(10, 0, 0, 'x'), frame(11, 0, 0, 0, 0, 0, 1, 'u'), frame(10, 0xff, 9), get(1)),
		script(get(1, "cookie", "a=b", "cookie", "c=d", "x", "1", "x", "2")),
		script(get(1, "host", "b")), script(get(1, "host", "a", "host", "a")), script(get(1, "connection", "close"), get(3)), script(get(1, "te", "gzip"), get(3)),
		script(get(1, "content-length", "5")), script(post(1, "content-length", "5", "content-length", "6")), script(get(1, "X-Upper", "1"), get(3)), script(get(1, "x", "a\nb"), get(3)),
		script(frame(http2.FrameHeaders, end|endHeaders, 1, 0xff, 0xff, 0xff, 0xff, 0xff)),
		// An entry of the dynamic table, repeated by single bytes.
		script(frame(http2.FrameHeaders, end|endHeaders, 1, append(append(slices.Clone(indexed), 0x60, 60), append([]byte(strings.Repeat("c", 60)), []byte(strings.Repeat("\xbe", 120))...)...)...), get(3)),
		script(get(1), []byte{byte(http2.FrameData), 0, 0, 255}), script(post(1), []byte{byte(http2.FrameData), 0, 1, 255}, []byte{byte(http2.FrameHeaders), 0, 3, 250}),
	}
}
