package h2

import (
	"fmt"
	"io"
	"net/http"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/net/http2"
)

// describeRequest answers with the target and the body of the request.
func describeRequest(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	_, _ = fmt.Fprint(w, r.Method, " ", r.RequestURI, " ", r.Host, " ", len(body), " ", err)
}

// Sections are those of RFC 9113.
func TestConnectionErrors(t *testing.T) {
	for name, test := range map[string]struct {
		send func(p *peer)
		code http2.ErrCode
	}{
		"3.4: first frame is not SETTINGS": {func(p *peer) {
			_, err := io.WriteString(p.conn, http2.ClientPreface)
			p.ok(err)
			p.ok(p.framer.WritePing(false, [8]byte{}))
		}, http2.ErrCodeProtocol},
		"3.4: wrong preface": {func(p *peer) {
			_, err := io.WriteString(p.conn, strings.ToLower(http2.ClientPreface))
			p.ok(err)
		}, http2.ErrCodeProtocol},
		"4.2: frame too large": {func(p *peer) {
			p.preface()
			p.get(1, "/")
			p.ok(p.framer.WriteRawFrame(http2.FrameData, 0, 1, make([]byte, bounds.MaxUploadPerStream+1)))
		}, http2.ErrCodeFrameSize},
		"4.3: block that is not HPACK": {func(p *peer) {
			p.preface()
			p.ok(p.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: []byte{0xff, 0xff, 0xff, 0xff, 0xff}, EndHeaders: true}))
		}, http2.ErrCodeCompression},
		"5.1: RST_STREAM of an idle stream": {func(p *peer) {
			p.preface()
			p.ok(p.framer.WriteRSTStream(1, http2.ErrCodeCancel))
		}, http2.ErrCodeProtocol},
		"5.1: WINDOW_UPDATE of an idle stream": {func(p *peer) {
			p.preface()
			p.ok(p.framer.WriteWindowUpdate(1, 1))
		}, http2.ErrCodeProtocol},
		"5.1: DATA of an idle stream": {func(p *peer) {
			p.preface()
			p.ok(p.framer.WriteData(1, true, nil))
		}, http2.ErrCodeProtocol},
		"5.1.1: even stream": {func(p *peer) { p.preface(); p.get(2, "/") }, http2.ErrCodeProtocol},
		"5.1.1: lower stream": {func(p *peer) {
			p.preface()
			p.get(3, "/")
			p.get(1, "/")
		}, http2.ErrCodeStreamClosed},
		"6.1: DATA on stream 0": {func(p *peer) {
			p.preface()
			p.ok(p.framer.WriteRawFrame(http2.FrameData, 0, 0, []byte("x")))
		}, http2.ErrCodeProtocol},
		"6.1: padding longer than the frame": {func(p *peer) {
			p.preface()
			p.open(1, "POST", "/", false)
			p.ok(p.framer.WriteRawFrame(http2.FrameData, http2.FlagDataPadded, 1, []byte{9, 1}))
		}, http2.ErrCodeProtocol},
		"6.5: SETTINGS of a stream": {func(p *peer) {
			p.preface()
			p.ok(p.framer.WriteRawFrame(http2.FrameSettings, 0, 1, nil))
		}, http2.ErrCodeProtocol},
		"6.5: SETTINGS of a wrong size": {func(p *peer) {
			p.preface()
			p.ok(p.framer.WriteRawFrame(http2.FrameSettings, 0, 0, make([]byte, 5)))
		}, http2.ErrCodeFrameSize},
		"6.5: ACK with a payload": {func(p *peer) {
			p.preface()
			p.ok(p.framer.WriteRawFrame(http2.FrameSettings, http2.FlagSettingsAck, 0, make([]byte, 6)))
		}, http2.ErrCodeFrameSize},
		"6.5.2: ENABLE_PUSH of 2": {func(p *peer) {
			p.preface(http2.Setting{ID: http2.SettingEnablePush, Val: 2})
		}, http2.ErrCodeProtocol},
		"6.5.2: MAX_FRAME_SIZE too small": {func(p *peer) {
			p.preface(http2.Setting{ID: http2.SettingMaxFrameSize, Val: 100})
		}, http2.ErrCodeProtocol},
		"6.6: PUSH_PROMISE": {func(p *peer) {
			p.preface()
			p.get(1, "/")
			p.ok(p.framer.WritePushPromise(http2.PushPromiseParam{StreamID: 1, PromiseID: 2, BlockFragment: p.fields(":method", "GET"), EndHeaders: true}))
		}, http2.ErrCodeProtocol},
		"6.7: PING of a wrong size": {func(p *peer) {
			p.preface()
			p.ok(p.framer.WriteRawFrame(http2.FramePing, 0, 0, make([]byte, 7)))
		}, http2.ErrCodeFrameSize},
		"6.10: CONTINUATION of nothing": {func(p *peer) {
			p.preface()
			p.ok(p.framer.WriteContinuation(1, true, nil))
		}, http2.ErrCodeProtocol},
		"6.10: HEADERS without CONTINUATION": {func(p *peer) {
			p.preface()
			p.ok(p.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: p.fields(":method", "GET")}))
			p.ok(p.framer.WritePing(false, [8]byte{}))
		}, http2.ErrCodeProtocol},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := connect(t, startOurs(t, blocking(t)))
			test.send(p)
			p.wantGoAway(test.code)
			p.wantClosed()
		})
	}
}

// Sections are those of RFC 9113. The connection still serves other streams afterwards.
func TestStreamErrors(t *testing.T) {
	headers := func(end bool, fields ...string) func(p *peer) {
		return func(p *peer) {
			p.ok(p.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: p.fields(fields...), EndHeaders: true, EndStream: end}))
		}
	}
	fine := []string{":method", "GET", ":scheme", "https", ":path", "/", ":authority", "x"}
	plus := func(more ...string) []string { return append(fine[:len(fine):len(fine)], more...) }
	for name, test := range map[string]struct {
		send func(p *peer)
		code http2.ErrCode
	}{
		"8.3: unknown pseudo-header field":    {headers(true, append([]string{":other", "x"}, fine...)...), http2.ErrCodeProtocol},
		"8.3: pseudo-header field of status":  {headers(true, append([]string{":status", "200"}, fine...)...), http2.ErrCodeProtocol},
		"8.3: pseudo-header field at the end": {headers(true, append([]string{"a", "b"}, fine...)...), http2.ErrCodeProtocol},
		"8.3: pseudo-header field twice":      {headers(true, append([]string{":method", "GET"}, fine...)...), http2.ErrCodeProtocol},
		"8.3.1: no method":                    {headers(true, fine[2:]...), http2.ErrCodeProtocol},
		"8.3.1: no path":                      {headers(true, append(fine[:4:4], fine[6:]...)...), http2.ErrCodeProtocol},
		"8.3.1: no scheme":                    {headers(true, append(fine[:2:2], fine[4:]...)...), http2.ErrCodeProtocol},
		"8.3.1: empty path":                   {headers(true, ":method", "GET", ":scheme", "https", ":path", "", ":authority", "x"), http2.ErrCodeProtocol},
		"8.3.1: path with an authority":       {headers(true, ":method", "GET", ":scheme", "https", ":path", "https://y/", ":authority", "x"), http2.ErrCodeProtocol},
		"8.3.1: host of another server":       {headers(true, plus("host", "y")...), http2.ErrCodeProtocol},
		"8.3.1: two hosts":                    {headers(true, plus("host", "x", "host", "x")...), http2.ErrCodeProtocol},
		"8.3.1: authority with a user":        {headers(true, append([]string{":authority", "u@x"}, fine[:6]...)...), http2.ErrCodeProtocol},
		"8.3.1: authority with a space":       {headers(true, append([]string{":authority", "x y"}, fine[:6]...)...), http2.ErrCodeProtocol},
		"8.3.1: path without a slash":         {headers(true, ":method", "GET", ":scheme", "https", ":path", "x", ":authority", "x"), http2.ErrCodeProtocol},
		"8.2.1: upper case":                   {headers(true, plus("X-Upper", "x")...), http2.ErrCodeProtocol},
		"8.2.1: value with a line feed":       {headers(true, plus("x", "a\nb")...), http2.ErrCodeProtocol},
		"8.2.2: connection":                   {headers(true, plus("connection", "close")...), http2.ErrCodeProtocol},
		"8.2.2: transfer-encoding":            {headers(true, plus("transfer-encoding", "chunked")...), http2.ErrCodeProtocol},
		"8.2.2: te":                           {headers(true, plus("te", "gzip")...), http2.ErrCodeProtocol},
		"8.5: CONNECT with a path":            {headers(true, ":method", "CONNECT", ":path", "/", ":authority", "x"), http2.ErrCodeProtocol},
		"8.5: CONNECT without authority":      {headers(true, ":method", "CONNECT"), http2.ErrCodeProtocol},
		"8.1.1: content-length of nothing":    {headers(true, plus("content-length", "5")...), http2.ErrCodeProtocol},
		"8.1.1: content-length twice":         {headers(false, plus("content-length", "5", "content-length", "6")...), http2.ErrCodeProtocol},
		"8.1.1: content-length negative":      {headers(false, plus("content-length", "-5")...), http2.ErrCodeProtocol},
		"RFC 8441, 3: :protocol not offered":  {headers(true, append(append([]string{":protocol", "websocket"}, fine[2:]...), ":method", "CONNECT")...), http2.ErrCodeProtocol},
		"8.1.1: body longer than content-length": {func(p *peer) {
			p.open(1, "POST", "/", false, "content-length", "2")
			p.ok(p.framer.WriteData(1, false, []byte("abc")))
		}, http2.ErrCodeProtocol},
		"8.1.1: body shorter than content-length": {func(p *peer) {
			p.open(1, "POST", "/", false, "content-length", "20")
			p.ok(p.framer.WriteData(1, true, []byte("abc")))
		}, http2.ErrCodeProtocol},
		"8.1.1: body with trailers shorter than content-length": {func(p *peer) {
			p.open(1, "POST", "/", false, "content-length", "20")
			headers(true, "x", "y")(p)
		}, http2.ErrCodeProtocol},
		"8.1: trailers without END_STREAM": {func(p *peer) {
			p.open(1, "POST", "/", false)
			headers(false, "x", "y")(p)
		}, http2.ErrCodeProtocol},
		"8.1: pseudo-header fields in trailers": {func(p *peer) {
			p.open(1, "POST", "/", false)
			headers(true, fine...)(p)
		}, http2.ErrCodeProtocol},
		"5.3.1: HEADERS that depend on themselves": {func(p *peer) {
			p.ok(p.framer.WriteHeaders(http2.HeadersFrameParam{
				StreamID: 1, BlockFragment: p.fields(fine...), EndHeaders: true, EndStream: true, Priority: http2.PriorityParam{StreamDep: 1},
			}))
		}, http2.ErrCodeProtocol},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := dial(t, startOurs(t, http.HandlerFunc(describeRequest)))
			test.send(p)
			p.wantReset(1, test.code)
			p.get(3, "/x")
			got := map[uint32]*answer{3: {}}
			p.read(got, func() bool { return got[3].ended })
			if want := "GET /x example.com 0 <nil>"; string(got[3].body) != want {
				t.Errorf("%q, want %q", got[3].body, want)
			}
		})
	}
}

// RFC 9113, section 5.1: no DATA in a half-closed stream.
func TestDataAfterEndStreamIsAStreamError(t *testing.T) {
	p := dial(t, startOurs(t, blocking(t)))
	p.get(1, "/")
	p.ok(p.framer.WriteData(1, true, []byte("x")))
	p.wantReset(1, http2.ErrCodeStreamClosed)
	p.open(3, "POST", "/", false)
	p.ok(p.framer.WriteData(3, true, []byte("x")))
	p.ok(p.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 3, BlockFragment: p.fields("x", "y"), EndHeaders: true, EndStream: true}))
	p.wantReset(3, http2.ErrCodeStreamClosed)
	p.ping()
}

// RFC 9113, section 5.1: frames that the client sent before it received RST_STREAM are ignored.
func TestFramesOfResetStreamsAreIgnored(t *testing.T) {
	p := dial(t, startOurs(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})))
	p.open(1, "POST", "/", false)
	p.wantReset(1, http2.ErrCodeNo) // answered without reading the body
	p.ok(p.framer.WriteData(1, false, []byte("x")))
	p.ok(p.framer.WriteWindowUpdate(1, 1))
	p.ok(p.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: p.fields("x", "y"), EndHeaders: true, EndStream: true}))
	p.ok(p.framer.WriteRSTStream(1, http2.ErrCodeCancel))
	p.get(3, "/")
	p.wantAnswer(3, "200", "")
}

// RFC 9113, sections 4.1, 5.3.2 and 5.5.
func TestUnknownFramesAndSettingsAreIgnored(t *testing.T) {
	p := dial(t, startOurs(t, http.HandlerFunc(describeRequest)), http2.Setting{ID: 0xf00, Val: 1})
	p.ok(p.framer.WriteRawFrame(0xf0, 0xff, 0, []byte("x")))
	p.ok(p.framer.WriteRawFrame(0xf0, 0xff, 99, []byte("x")))
	p.ok(p.framer.WritePriority(5, http2.PriorityParam{StreamDep: 3}))
	p.ok(p.framer.WriteSettings(http2.Setting{ID: 0xf01, Val: 1}))
	p.ok(p.framer.WritePing(true, [8]byte{1}))
	p.open(1, "POST", "/x", false, "te", "trailers")
	p.ok(p.framer.WriteRawFrame(0xf0, 0, 1, []byte("x")))
	p.ok(p.framer.WriteDataPadded(1, true, []byte("abc"), make([]byte, 9)))
	p.wantAnswer(1, "200", "POST /x example.com 3 <nil>")
}

func TestRequestTargets(t *testing.T) {
	for name, test := range map[string]struct {
		fields []string
		want   string
	}{
		"authority":          {[]string{":method", "GET", ":scheme", "https", ":path", "/a?b", ":authority", "x:1"}, "GET /a?b x:1 0 <nil>"},
		"authority and host": {[]string{":method", "GET", ":scheme", "https", ":path", "/a", ":authority", "x", "host", "x"}, "GET /a x 0 <nil>"},
		"host":               {[]string{":method", "GET", ":scheme", "https", ":path", "/a", "host", "y"}, "GET /a y 0 <nil>"},
		"options":            {[]string{":method", "OPTIONS", ":scheme", "https", ":path", "*", ":authority", "x"}, ""},
		"connect":            {[]string{":method", "CONNECT", ":authority", "x:443"}, "CONNECT x:443 x:443 0 <nil>"},
	} {
		t.Run(name, func(t *testing.T) {
			for _, server := range map[string]func() *peer{
				"Go's": func() *peer { return dial(t, startGo(t, http.HandlerFunc(describeRequest))) },
				"ours": func() *peer { return dial(t, startOurs(t, http.HandlerFunc(describeRequest))) },
			} {
				p := server()
				p.ok(p.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: p.fields(test.fields...), EndHeaders: true, EndStream: true}))
				p.wantAnswer(1, "200", test.want)
			}
		})
	}
}

// RFC 9113, section 8.2.3: several cookie fields become one.
func TestCookiesAreJoined(t *testing.T) {
	p := dial(t, startOurs(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = fmt.Fprintf(w, "%q", r.Header["Cookie"]) })))
	p.open(1, "GET", "/", true, "cookie", "a=b", "cookie", "c=d", "cookie", "e=f")
	p.wantAnswer(1, "200", `["a=b; c=d; e=f"]`)
}

// Cookies are joined at once: the cost of as many as fit into a header list is linear in their
// length.
func TestManyCookiesAreCheap(t *testing.T) {
	const n = 12_000
	p := dial(t, startOurs(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = fmt.Fprint(w, len(r.Header.Get("Cookie"))) })))
	var fields []string
	for range n {
		fields = append(fields, "cookie", "a=b")
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	p.open(1, "GET", "/", true, fields...)
	p.wantAnswer(1, "200", fmt.Sprint(n*len("a=b; ")-2))
	runtime.ReadMemStats(&after)
	if made := after.TotalAlloc - before.TotalAlloc; made > 32<<20 {
		t.Errorf("%d cookies cost %d bytes of memory", n, made)
	}
}

// RFC 9113, sections 6.10 and 10.5.1; RFC 6585, section 5.
func TestHeaderListsAreBounded(t *testing.T) {
	list := func(n int) []string {
		fields := []string{":method", "GET", ":scheme", "https", ":authority", "x", ":path", "/"}
		for i := range n {
			fields = append(fields, fmt.Sprint("x-", i), large(1000))
		}
		return fields
	}
	small := func(t *testing.T) *peer {
		s := newServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = fmt.Fprint(w, len(r.Header)) }), bounds, nil)
		s.Config.MaxHeaderBytes = 64 << 10
		return dial(t, start(t, s))
	}
	send := func(p *peer, id uint32, block []byte, size int) {
		p.ok(p.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block[:size], EndStream: true}))
		for block = block[size:]; ; block = block[size:] {
			size = min(size, len(block))
			p.ok(p.framer.WriteContinuation(id, size == len(block), block[:size]))
			if size == len(block) {
				return
			}
		}
	}
	t.Run("fits", func(t *testing.T) {
		p := small(t)
		send(p, 1, p.fields(list(50)...), 100)
		p.wantAnswer(1, "200", "50")
	})
	t.Run("too large", func(t *testing.T) {
		p := small(t)
		send(p, 1, p.fields(list(70)...), 10_000)
		p.wantAnswer(1, "431", "request header fields too large\n")
		p.get(3, "/")
		p.wantAnswer(3, "200", "0")
	})
	t.Run("CONTINUATION without end", func(t *testing.T) {
		p := small(t)
		block := p.fields(list(100)...)
		p.ok(p.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block, EndStream: true}))
		for range 100 {
			if p.framer.WriteContinuation(1, false, p.fields("x", large(10_000))) != nil {
				break // may be closed already
			}
		}
		p.wantClosed()
	})
	t.Run("empty CONTINUATION without end", func(t *testing.T) {
		p := small(t)
		p.ok(p.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: p.fields(list(1)...), EndStream: true}))
		for range 1000 {
			p.ok(p.framer.WriteContinuation(1, false, nil))
		}
		p.ok(p.framer.WriteContinuation(1, true, nil))
		p.wantAnswer(1, "200", "1")
	})
}

// A handler may use the map of trailers until it has read the body.
func TestTrailersAreSetAtTheEndOfTheBody(t *testing.T) {
	p := dial(t, startOurs(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "go on")
		flush(w)
		for range 1000 {
			if clone := r.Clone(r.Context()); len(clone.Trailer["X-One"]) != 0 {
				_, _ = io.WriteString(w, "too early")
			}
		}
		_, _ = io.Copy(io.Discard, r.Body)
		_, _ = fmt.Fprint(w, r.Trailer)
	})))
	p.open(1, "POST", "/", false, "trailer", "x-one")
	got := map[uint32]*answer{1: {}}
	p.read(got, func() bool { return len(got[1].body) > 0 })
	p.ok(p.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: p.fields("x-one", "1", "x-other", "2"), EndHeaders: true, EndStream: true}))
	p.read(got, func() bool { return got[1].ended })
	if want := "go onmap[X-One:[1]]"; string(got[1].body) != want {
		t.Errorf("%q, want %q", got[1].body, want)
	}
}

// A client may close the connection, with all streams, for longer headers than it accepts (RFC 9113,
// section 10.5.1).
func TestResponseHeadersRespectThePeerLimit(t *testing.T) {
	for _, where := range []string{"head", "trailers"} {
		t.Run(where, func(t *testing.T) {
			p := dial(t, startOurs(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/long" && where == "trailers" {
					_, _ = io.WriteString(w, "body")
					w.Header().Set(http.TrailerPrefix+"X-Long", large(4<<10))
				} else if r.URL.Path == "/long" {
					w.Header().Set("X-Long", large(4<<10))
				}
			})), http2.Setting{ID: http2.SettingMaxHeaderListSize, Val: 4 << 10})
			p.get(1, "/long")
			p.wantReset(1, http2.ErrCodeInternal)
			p.get(3, "/")
			p.wantAnswer(3, "200", "")
		})
	}
}
