package h2

import (
	"net/http"
	"testing"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// copying counts the bytes that a decoder copies: with each fragment, all of an incomplete field.
type copying struct {
	decoder
	unread, copied int
}

func (c *copying) Write(fragment []byte) (int, error) {
	c.unread += len(fragment)
	c.copied += c.unread
	return c.decoder.Write(fragment)
}

// CVE-2024-27316 and similar: the cost of a field that arrives byte by byte is linear in its length.
func TestFieldsInManyFramesAreCheap(t *testing.T) {
	const size = 300_000
	p := &peer{t: t}
	p.encoder = hpack.NewEncoder(&p.block)
	block := p.fields("x-long", large(size))
	b := newHeaderBlock(1 << 20)
	counted := &copying{decoder: b.decoder}
	b.decoder = counted
	b.start(&http2.HeadersFrame{FrameHeader: http2.FrameHeader{StreamID: 1}})
	for i := range block {
		if err := b.decode(block[i:i+1], i == len(block)-1); err != nil {
			t.Fatal(err)
		}
	}
	if len(b.regular) != 1 || b.regular[0].Value != large(size) {
		t.Fatal("it is not what was sent")
	}
	if most := 20 * len(block); counted.copied > most {
		t.Errorf("%d bytes are copied for %d, more than %d", counted.copied, len(block), most)
	}
}

// A connection releases the memory of a large request.
func TestConnectionsRetainLittleOfLargeHeaders(t *testing.T) {
	p := dial(t, startOurs(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Long", large(20_000))
		w.WriteHeader(len(r.Header) + 197) // 200 for three headers
		conns <- w.(*response).stream.conn
	})))
	var many []string
	for range 20_000 { // one byte each
		many = append(many, "a", "")
	}
	p.open(1, "GET", "/", true, append(many, "b", "", "c", "")...)
	c := within(t, conns, "a request")
	p.wantAnswer(1, "200", "")
	p.get(3, "/none") // the connection has finished the first one
	p.read(map[uint32]*answer{3: {}}, func() bool { return len(conns) == 1 })
	<-conns
	p.ping()
	c.mu.Lock()
	defer c.mu.Unlock()
	if n := cap(c.headers.regular); n > maxRetainedFields {
		t.Errorf("there is room for %d fields", n)
	}
	if n := c.hpackBuf.Cap(); n > 2*smallOutput {
		t.Errorf("there are %d bytes for a header block", n)
	}
}

var conns = make(chan *conn, 1)
