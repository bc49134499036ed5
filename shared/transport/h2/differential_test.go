package h2

import (
	"encoding/binary"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/net/http2"
)

// FuzzFramesMatchGo sends the same frames to Go's server and to this one. After each frame both
// must have passed on the same requests and refused the same streams, and must keep the
// connection or have closed it for the same reason. Neither may allocate much more than it
// received. tolerated lists the allowed differences.
//
// A frame of the input has one byte each for type, flags, stream and length, followed by the
// payload; see parseScript. Windows exceed everything that is sent, and handlers answer after all
// frames were read, so that the result does not depend on timing.
func FuzzFramesMatchGo(f *testing.F) {
	for _, seed := range frameSeeds() {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, script []byte) {
		frames := parseScript(script)
		var want, got *scriptResult
		synctest.Test(t, func(t *testing.T) { want = runScript(t, frames, serveGo) })
		synctest.Test(t, func(t *testing.T) { got = runScript(t, frames, serveOurs) })
		broken := false
		for i := range frames {
			if i >= len(want.steps) || i >= len(got.steps) {
				break
			}
			w, g := want.steps[i], got.steps[i]
			if diff := cmp.Diff(w, g); diff != "" {
				if tolerated(frames[i], w, g) {
					return
				}
				t.Fatalf("after frame %d, %s (-Go's server +ours):\n%s", i, describe(frames[:i+1]), diff)
			}
			broken = broken || w.Ended != "" || len(w.Refused) > 0 || frames[i][3] == byte(http2.FrameRSTStream)
			if w.Ended != "" {
				break
			}
		}
		// Go's server still passes on the data of aborted bodies.
		if diff := cmp.Diff(want.requests, got.requests); diff != "" && !broken {
			t.Errorf("%s (-Go's server +ours):\n%s", describe(frames), diff)
		}
		for name, o := range map[string]*scriptResult{"Go's": want, "ours": got} {
			if most := allocatedAtLeast + allocatedPerByte*o.sent; o.allocated > most {
				t.Errorf("%s: %d bytes made the %s server allocate %d, more than %d", describe(frames), o.sent, name, o.allocated, most)
			}
		}
	})
}

// The limit of allocations: a constant for the connection and the client of the test, and a factor
// of the received bytes.
const (
	allocatedAtLeast = 512 << 10
	allocatedPerByte = 400
)

// tolerated reports whether the two servers may differ in this way after a frame.
func tolerated(frame []byte, gos, ours step) bool {
	kind, id := http2.FrameType(frame[3]), binary.BigEndian.Uint32(frame[5:])
	more := len(gos.Requests) > len(ours.Requests)
	refused := slices.Contains(ours.Refused, id)
	if id%2 == 0 && id != 0 && ours.Ended != "" && (gos.Ended != "" || slices.Contains(gos.Refused, id)) {
		return true // clients cannot open such a stream (section 5.1.1)
	}
	if len(ours.Refused) > 0 && slices.Max(ours.Refused) >= id && len(ours.Requests) <= len(gos.Requests) {
		// A malformed request opens its stream and closes all lower ones (section 5.1.1), and
		// frames of a reset stream are ignored (section 5.1). For Go's server, such a stream
		// was never opened, or the frame is an error.
		return true
	}
	switch kind {
	case http2.FrameSettings:
		// Duplicate settings: RFC 9113, section 6.5.3, applies the last one.
		return gos.Ended == http2.ErrCodeProtocol.String()
	case http2.FrameHeaders, http2.FrameContinuation:
		// This server decodes a short fragment together with the next one.
		if http2.Flags(frame[4])&http2.FlagHeadersEndHeaders == 0 && gos.Ended != "" && ours.Ended == "" {
			return true
		}
		// Different lengths, of which Go's server uses the first, or a length without a body
		// (section 8.1.1).
		return more && refused && strings.Contains(gos.Requests[len(gos.Requests)-1], "Content-Length: ")
	case http2.FrameData:
		// A body that is shorter than its length (section 8.1.1). The handler of Go's server
		// gets the error.
		return refused && ours.Ended == gos.Ended && slices.ContainsFunc(gos.Requests, func(r string) bool { return strings.Contains(r, "Content-Length: ") })
	}
	return false
}
