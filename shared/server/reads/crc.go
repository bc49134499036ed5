package reads

import "hash/crc32"

// The checksum of a concatenation follows from the checksums of its two parts and the length
// of the second: a CRC is the remainder of a polynomial over GF(2), and appending multiplies
// the first part by a power of x. Polynomials are represented as in hash/crc32: the
// coefficient of x^0 is the highest bit.

// multiply multiplies two polynomials modulo that of the CRC.
func multiply(a, b uint32) uint32 {
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

// shiftPowers[i] is x^(8·2^i), by which appending 2^i bytes multiplies.
var shiftPowers = func() (p [64]uint32) {
	p[0] = 1 << (31 - 8)
	for i := 1; i < len(p); i++ {
		p[i] = multiply(p[i-1], p[i-1])
	}
	return p
}()

// combineCRC returns the checksum of a concatenation from the checksums of both parts and
// the length of the second.
func combineCRC(first, second uint32, secondLen int64) uint32 {
	for i := 0; secondLen != 0; i++ {
		if secondLen&1 != 0 {
			first = multiply(shiftPowers[i], first)
		}
		secondLen >>= 1
	}
	return first ^ second
}
