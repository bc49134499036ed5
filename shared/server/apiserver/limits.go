package apiserver

import (
	"sync/atomic"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
)

// boundPatches bounds the bytes that the copy operations of one JSON patch may add to an
// object, 0 for no bound. The patches of k8s.io/apiserver are applied by a library whose
// bound is a variable of the process; of the tiers in it, the lowest one holds.
func boundPatches(bytes int64) {
	for bytes > 0 {
		bound := atomic.LoadInt64(&jsonpatch.AccumulatedCopySizeLimit)
		if bound > 0 && bound <= bytes || atomic.CompareAndSwapInt64(&jsonpatch.AccumulatedCopySizeLimit, bound, bytes) {
			return
		}
	}
}
