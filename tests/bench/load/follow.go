package load

import (
	"context"
	"fmt"
	"math"
)

// Expired is returned by Follow if the server sends an ERROR event: the client has to list
// again. It is not a revision.
const Expired = math.MaxUint64

// Follow reads a watch until a revision at or after want, and returns the last revision
// seen, also with an error.
func (c *Conn) Follow(ctx context.Context, r Request, want uint64) (last uint64, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	resp, err := c.send(ctx, r)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	if err := r.checkStatus(resp); err != nil {
		return 0, err
	}
	events := frames(r.Accept, resp.Body)
	for last < want {
		e, err := events.next()
		if err != nil {
			return last, fmt.Errorf("%s: %w", r, err)
		}
		if e.Type == "ERROR" {
			return Expired, fmt.Errorf("%s: %w: an ERROR event", r, ErrAnswer)
		}
		last = max(last, e.Revision)
	}
	return last, nil
}

// Stall opens a watch and reads nothing until ctx ends.
func (c *Conn) Stall(ctx context.Context, r Request) error {
	resp, err := c.send(ctx, r)
	if err != nil {
		return err
	}
	context.AfterFunc(ctx, func() { resp.Body.Close() })
	return r.checkStatus(resp)
}
