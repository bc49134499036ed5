package eventlog

import (
	"context"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// streamHealth is the condition of a stream and its replicas.
type streamHealth struct {
	tier              Tier
	replicas, missing int
	history           History
}

// healthInterval is the time between two checks of the streams.
const healthInterval = 10 * time.Second

// checkHealth checks the open streams in the background, once per healthInterval.
func (t *term) checkHealth(ctx context.Context) {
	if t.checkingHealth {
		return
	}
	t.checkingHealth = true
	type look struct {
		tier   Tier
		stream jetstream.Stream
	}
	var looks []look
	for _, f := range t.feeds {
		if f.open() {
			looks = append(looks, look{f.tier, f.stream})
		}
	}
	t.background.Go(func() {
		for _, l := range looks {
			reqCtx, cancel := context.WithTimeout(ctx, natsTimeout)
			info, err := l.stream.Info(reqCtx)
			cancel()
			if err != nil {
				continue
			}
			c := streamHealth{tier: l.tier, replicas: info.Config.Replicas, missing: info.Config.Replicas - 1}
			c.history = History{Bytes: int64(info.State.Bytes), MaxBytes: info.Config.MaxBytes}
			if info.State.Msgs > 0 {
				c.history.Age = max(info.TimeStamp.Sub(info.State.FirstTime), 0)
			}
			if info.Cluster != nil {
				for _, peer := range info.Cluster.Replicas {
					if peer.Current && !peer.Offline {
						c.missing--
					}
				}
			}
			select {
			case t.health <- c:
			case <-ctx.Done():
				return
			}
		}
		pause := time.NewTimer(healthInterval)
		defer pause.Stop()
		select {
		case <-pause.C:
		case <-ctx.Done():
			return
		}
		select {
		case t.health <- streamHealth{}:
		case <-ctx.Done():
		}
	})
}

func (t *term) onHealth(c streamHealth) {
	if c.tier == "" {
		t.checkingHealth = false
		return
	}
	t.setStream(c.tier, func(s *StreamStatus) { s.Replicas, s.Missing, s.History = c.replicas, max(c.missing, 0), c.history })
}
