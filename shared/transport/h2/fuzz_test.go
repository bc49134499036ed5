package h2

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"golang.org/x/net/http2"
)

// FuzzRequestsMatchGo sends the same header fields to Go's server and to this one. Both must agree
// whether they form a request, and which one: a proxy and the server behind it could otherwise be
// made to disagree. The input has one field per line, with name and value separated by the first
// "=". The kind of refusal may differ, and this server may be stricter in one way: it refuses a
// length that is impossible without a body.
func FuzzRequestsMatchGo(f *testing.F) {
	const get = ":method=GET\n:scheme=https\n:authority=example.com\n:path=/api?x=1\n"
	for _, seed := range []string{
		get,
		get + "accept=a\naccept=b\ncookie=a=b\ncookie=c=d",
		get + "host=other.example",
		get + "content-length=0", get + "content-length=1", get + "content-length=0\ncontent-length=00", get + "content-length=+0",
		get + "te=trailers", get + "te=gzip", get + "connection=close", get + "transfer-encoding=chunked", get + "upgrade=h2c",
		get + "trailer=X-One,Content-Length,x two", get + "expect=100-continue",
		get + "X-Upper=1", get + "x-nul=a\x00b", get + "x-cr=a\rb", get + "x space=1", get + "=1", get + "x-utf=ä", get + ":path=/other",
		get + ":status=200", get + ":protocol=websocket", "accept=first\n" + get,
		":method=GET\n:scheme=https\n:path=/", ":method=GET\n:scheme=ftp\n:authority=a\n:path=/", ":method=GET\n:authority=a\n:path=/",
		":method=G T\n:scheme=https\n:authority=a\n:path=/", ":method=get\n:scheme=http\n:authority=a\n:path=/", ":method=\n:scheme=https\n:path=/",
		":method=GET\n:scheme=https\n:authority=a\n:path=", ":method=GET\n:scheme=https\n:authority=a\n:path=api", ":method=OPTIONS\n:scheme=https\n:authority=a\n:path=*",
		":method=GET\n:scheme=https\n:authority=a\n:path=//a/../b%2f%2e;c?%zz#d", ":method=GET\n:scheme=https\n:authority=a\n:path=https://b/c", ":method=GET\n:scheme=https\n:authority=a\n:path=/%zz",
		":method=CONNECT\n:authority=a:1", ":method=CONNECT\n:scheme=https\n:authority=a\n:path=/", ":method=GET\n:scheme=https\n:authority=u@a b\n:path=/",
	} {
		f.Add(seed)
	}
	tell := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Header.Del("Host")
		_, _ = io.WriteString(w, dump(r))
	})
	servers := map[string]*httptest.Server{"ours": startOurs(f, tell), "Go's": startGo(f, tell)}
	f.Fuzz(func(t *testing.T, lines string) {
		if len(lines) > 16<<10 {
			return // other tests cover the limits of size
		}
		var fields []string
		wrongLength := false
		for line := range strings.SplitSeq(lines, "\n") {
			name, value, _ := strings.Cut(line, "=")
			fields = append(fields, name, value)
			wrongLength = wrongLength || name == "content-length" && value != "0"
		}
		got, want := requestSeenBy(t, servers["ours"], fields), requestSeenBy(t, servers["Go's"], fields)
		if got != want && (got != "" || !wrongLength) {
			t.Errorf("%q: ours\n%s\nGo's\n%s", fields, got, want)
		}
	})
}

// requestSeenBy sends a request and returns what its handler received, or "" if it did not run.
func requestSeenBy(t *testing.T, s *httptest.Server, fields []string) string {
	p := dial(t, s)
	defer p.conn.NetConn().Close()
	p.ok(p.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: p.fields(fields...), EndStream: true, EndHeaders: true}))
	var seen strings.Builder
	for {
		f, err := p.framer.ReadFrame()
		if err != nil {
			t.Fatalf("%q: %v", fields, err)
		}
		switch f := f.(type) {
		case *http2.HeadersFrame:
			head, err := p.decoder.DecodeFull(f.HeaderBlockFragment())
			p.ok(err)
			if head[0].Value != "200" {
				return "" // refused with a response
			}
			if f.StreamEnded() {
				return seen.String()
			}
		case *http2.DataFrame:
			seen.Write(f.Data())
			if f.StreamEnded() {
				return seen.String()
			}
		case *http2.RSTStreamFrame, *http2.GoAwayFrame:
			return ""
		}
	}
}
