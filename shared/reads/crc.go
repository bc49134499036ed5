package reads

import "hash/crc32"

// The checksum of two strings one after the other follows from those of the two and
// the length of the second: a CRC is the remainder of a polynomial over GF(2), and
// what comes after multiplies what came before by a power of x. Polynomials are kept
// as in hash/crc32: the coefficient of x^0 is the highest bit.

// times multiplies two polynomials modulo that of the CRC.
func times(a, b uint32) uint32 {
	var product uint32
	for bit := uint32(1) << 31; a != 0; bit >>= 1 {
		if a&bit != 0 {
			product ^= b
			a &^= bit
		}
		// b times x
		if b&1 != 0 {
			b = b>>1 ^ crc32.IEEE
		} else {
			b >>= 1
		}
	}
	return product
}

// powers[i] is x^(8·2^i): what 2^i bytes multiply by.
var powers = func() (p [64]uint32) {
	p[0] = 1 << (31 - 8)
	for i := 1; i < len(p); i++ {
		p[i] = times(p[i-1], p[i-1])
	}
	return p
}()

// joinedCRC returns the checksum of two strings from those of both and the length
// of the second.
func joinedCRC(first, second uint32, secondLen int64) uint32 {
	for i := 0; secondLen != 0; i++ {
		if secondLen&1 != 0 {
			first = times(powers[i], first)
		}
		secondLen >>= 1
	}
	return first ^ second
}
