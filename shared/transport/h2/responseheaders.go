package h2

import (
	"bytes"
	"net/http"
	"net/textproto"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/http/httpguts"
	"golang.org/x/net/http2/hpack"
)

// pendingHeaders is a snapshot of the headers at WriteHeader. The handler may change its header
// map afterwards.
type pendingHeaders struct {
	fields                                   []hpack.HeaderField
	hasType, hasEncoding, hasLength, hasDate bool
}

var pendingHeadersPool = sync.Pool{New: func() any { return &pendingHeaders{fields: make([]hpack.HeaderField, 0, 16)} }}

// snapshotHeaders copies the current headers.
func (r *response) snapshotHeaders(status int) *pendingHeaders {
	h := pendingHeadersPool.Get().(*pendingHeaders)
	h.fields = append(h.fields, hpack.HeaderField{Name: ":status", Value: statusText(status)})
	for key, values := range r.header {
		switch key {
		case "Connection", "Proxy-Connection", "Keep-Alive", "Transfer-Encoding", "Upgrade":
			continue // RFC 9113, section 8.2.2
		case "Content-Length":
			if len(values) == 0 || status < 200 || status == http.StatusNoContent {
				continue // RFC 9110, section 8.6
			}
			if _, err := strconv.ParseUint(values[0], 10, 63); err != nil {
				continue
			}
			h.hasLength = true
		case "Content-Type":
			h.hasType = true
		case "Content-Encoding":
			h.hasEncoding = len(values) > 0 && values[0] != ""
		case "Date":
			h.hasDate = true
		}
		if strings.HasPrefix(key, http.TrailerPrefix) {
			continue
		}
		h.fields = appendFields(h.fields, key, values)
	}
	return h
}

func (h *pendingHeaders) release() {
	clear(h.fields)
	*h = pendingHeaders{fields: h.fields[:0]}
	pendingHeadersPool.Put(h)
}

func appendFields(fields []hpack.HeaderField, key string, values []string) []hpack.HeaderField {
	name := lower(key)
	if !httpguts.ValidHeaderFieldName(name) {
		return fields
	}
	for _, value := range values {
		if httpguts.ValidHeaderFieldValue(value) {
			// An audit ID is unique: indexing it would only evict other entries from the table.
			fields = append(fields, hpack.HeaderField{Name: name, Value: value, Sensitive: name == "audit-id"})
		}
	}
	return fields
}

func statusText(status int) string {
	if status == http.StatusOK {
		return "200"
	}
	return strconv.Itoa(status)
}

// completeHeaders adds the headers that WriteHeader left to the first bytes of the body: its
// length, unless it is negative, its type, and the date.
func (r *response) completeHeaders(body []byte, length int64) []hpack.HeaderField {
	h := r.pending
	allowed := bodyAllowed(r.status)
	if !h.hasLength && allowed && length >= 0 && (length > 0 || !r.isHEAD) {
		h.fields = append(h.fields, hpack.HeaderField{Name: "content-length", Value: strconv.FormatInt(length, 10)})
	}
	if !h.hasType && !h.hasEncoding && allowed && len(body) > 0 {
		h.fields = append(h.fields, hpack.HeaderField{Name: "content-type", Value: http.DetectContentType(body)})
	}
	if !h.hasDate {
		h.fields = append(h.fields, hpack.HeaderField{Name: "date", Value: httpDate()})
	}
	return h.fields
}

// bodyAllowed reports whether a response with this status may have a body (RFC 9110, section
// 6.4.1).
func bodyAllowed(status int) bool {
	return status >= 200 && status != http.StatusNoContent && status != http.StatusNotModified
}

var cachedDate atomic.Pointer[struct {
	second int64
	text   string
}]

// httpDate returns the current time for the Date header (RFC 9110, section 6.6.1).
func httpDate() string {
	now := time.Now()
	if d := cachedDate.Load(); d != nil && d.second == now.Unix() {
		return d.text
	}
	text := now.UTC().Format(http.TimeFormat)
	cachedDate.Store(&struct {
		second int64
		text   string
	}{now.Unix(), text})
	return text
}

// trailerFields returns the announced trailers and those with [http.TrailerPrefix].
func (r *response) trailerFields() []hpack.HeaderField {
	var fields []hpack.HeaderField
	for _, key := range r.trailers {
		fields = appendFields(fields, key, r.header[key])
	}
	for key, values := range r.header {
		if name, ok := strings.CutPrefix(key, http.TrailerPrefix); ok && httpguts.ValidTrailerHeader(textproto.CanonicalMIMEHeaderKey(name)) {
			fields = appendFields(fields, name, values)
		}
	}
	return fields
}

// waitForHeaderRoomLocked waits until the output is below its limit. It does not wait for more,
// because a header block may be much longer than the limit.
func (s *stream) waitForHeaderRoomLocked() error {
	c := s.conn
	for c.pendingLocked() >= outputLimit {
		if err := s.errLocked(); err != nil {
			return err
		}
		if !c.writing {
			c.flushLocked()
			continue
		}
		c.awaitingHeaderRoom[s] = struct{}{}
		s.wake.Wait()
		delete(c.awaitingHeaderRoom, s)
	}
	return s.errLocked()
}

// exceedsPeerLimitLocked reports whether a header list is longer than the client accepts. A
// client may close the whole connection for such a list (RFC 9113, section 10.5.1).
func (c *conn) exceedsPeerLimitLocked(fields []hpack.HeaderField) bool {
	if c.peerMaxHeaderList == 0 {
		return false
	}
	size := uint32(0)
	for _, f := range fields {
		size += f.Size()
	}
	return size > c.peerMaxHeaderList
}

// appendHeadersLocked compresses and appends a header block. Compression is stateful: blocks must
// be sent in the order of compression.
func (c *conn) appendHeadersLocked(id uint32, fields []hpack.HeaderField, end bool) {
	c.hpackBuf.Reset()
	for _, f := range fields {
		_ = c.hpackEncoder.WriteField(f) // never fails for a buffer
	}
	out := c.reserveLocked(frameHeader + c.hpackBuf.Len())
	*out = appendHeaders(*out, id, c.hpackBuf.Bytes(), end, int(c.maxFrameSize))
	if c.hpackBuf.Cap() > 2*smallOutput {
		c.hpackBuf = bytes.Buffer{} // do not retain a large buffer
	}
}
