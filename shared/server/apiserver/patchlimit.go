package apiserver

import (
	"sync/atomic"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
)

// limitPatchCopies limits the bytes that the copy operations of one JSON patch may add to an
// object; 0 means no limit. The library that applies patches for k8s.io/apiserver has one
// limit for the process, so the lowest limit of the tiers in the process applies.
func limitPatchCopies(bytes int64) {
	for bytes > 0 {
		limit := atomic.LoadInt64(&jsonpatch.AccumulatedCopySizeLimit)
		if limit > 0 && limit <= bytes || atomic.CompareAndSwapInt64(&jsonpatch.AccumulatedCopySizeLimit, limit, bytes) {
			return
		}
	}
}
