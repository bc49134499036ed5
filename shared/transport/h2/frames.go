package h2

import (
	"encoding/binary"

	"golang.org/x/net/http2"
)

// frameHeader is the size of a frame header, in bytes (RFC 9113, section 4.1).
const frameHeader = 9

func appendFrameHeader(b []byte, length int, kind http2.FrameType, flags http2.Flags, id uint32) []byte {
	b = append(b, byte(length>>16), byte(length>>8), byte(length), byte(kind), byte(flags))
	return binary.BigEndian.AppendUint32(b, id)
}

func appendSettings(b []byte, settings ...http2.Setting) []byte {
	b = appendFrameHeader(b, 6*len(settings), http2.FrameSettings, 0, 0)
	for _, s := range settings {
		b = binary.BigEndian.AppendUint16(b, uint16(s.ID))
		b = binary.BigEndian.AppendUint32(b, s.Val)
	}
	return b
}

func appendSettingsAck(b []byte) []byte {
	return appendFrameHeader(b, 0, http2.FrameSettings, http2.FlagSettingsAck, 0)
}

func appendPingAck(b []byte, data [8]byte) []byte {
	return append(appendFrameHeader(b, len(data), http2.FramePing, http2.FlagPingAck, 0), data[:]...)
}

func appendReset(b []byte, id uint32, code http2.ErrCode) []byte {
	return binary.BigEndian.AppendUint32(appendFrameHeader(b, 4, http2.FrameRSTStream, 0, id), uint32(code))
}

func appendGoAway(b []byte, lastID uint32, code http2.ErrCode, why string) []byte {
	b = appendFrameHeader(b, 8+len(why), http2.FrameGoAway, 0, 0)
	b = binary.BigEndian.AppendUint32(b, lastID)
	b = binary.BigEndian.AppendUint32(b, uint32(code))
	return append(b, why...)
}

// appendWindowUpdate appends a WINDOW_UPDATE frame; id 0 stands for the connection.
func appendWindowUpdate(b []byte, id uint32, n int) []byte {
	return binary.BigEndian.AppendUint32(appendFrameHeader(b, 4, http2.FrameWindowUpdate, 0, id), uint32(n))
}

// appendHeaders appends a header block as a HEADERS frame and as many CONTINUATION frames as
// necessary.
func appendHeaders(b []byte, id uint32, block []byte, end bool, maxFrame int) []byte {
	kind, flags := http2.FrameHeaders, http2.Flags(0)
	if end {
		flags = http2.FlagHeadersEndStream
	}
	for {
		n := min(len(block), maxFrame)
		if n == len(block) {
			flags |= http2.FlagHeadersEndHeaders // the same flag in CONTINUATION
		}
		b = append(appendFrameHeader(b, n, kind, flags, id), block[:n]...)
		if block = block[n:]; len(block) == 0 {
			return b
		}
		kind, flags = http2.FrameContinuation, 0
	}
}
