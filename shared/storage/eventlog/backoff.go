package eventlog

import (
	"context"
	"math/rand/v2"
	"time"
)

// backoff spaces retries, from 50 ms, doubling up to 2 s.
type backoff struct{ last time.Duration }

// wait sleeps. It returns false if the context ended meanwhile.
func (b *backoff) wait(ctx context.Context) bool {
	b.next()
	t := time.NewTimer(b.last/2 + rand.N(b.last/2))
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// next lengthens the next pause.
func (b *backoff) next() { b.last = min(max(2*b.last, 50*time.Millisecond), 2*time.Second) }

func (b *backoff) reset() { b.last = 0 }
