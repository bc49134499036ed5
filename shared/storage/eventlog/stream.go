package eventlog

import (
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// StreamOptions are the options of the streams that an operator can set.
type StreamOptions struct {
	// Memory stores the streams in memory instead of in files. The streams are then lost with
	// the server, which costs history and nothing else.
	Memory bool
	// Replicas is the number of servers that store a copy; 0 means 1.
	Replicas int
	// MaxAge is the age up to which events are stored; 0 means DefaultMaxAge.
	MaxAge time.Duration
	// MaxBytes bounds each stream; 0 means DefaultFileBytes or, with Memory,
	// DefaultMemoryBytes; -1 means no bound. A stream stores less if NATS lacks the room.
	MaxBytes int64
}

// Defaults of StreamOptions. With kube-apiserver's default compaction, etcd retains five to ten
// minutes of history. Under the load that docs/scaling.md plans for, ten minutes of history are
// 3.8 GB.
const (
	DefaultMaxAge      = time.Hour
	DefaultFileBytes   = 4 << 30
	DefaultMemoryBytes = 1 << 30
	// minStreamBytes is the size of a stream if there is no room for more.
	minStreamBytes = 256 << 20
)

// config returns the configuration of the stream.
//
// There is no limit per subject: each progress message rolls up its subject, which removes the
// previous one.
func (o StreamOptions) config(name string) jetstream.StreamConfig {
	c := jetstream.StreamConfig{
		Name:        name,
		Description: "changes of etcd, published by Triune's relay",
		Subjects:    []string{name + allSubjects},
		Retention:   jetstream.LimitsPolicy,
		Discard:     jetstream.DiscardOld,
		Storage:     jetstream.FileStorage,
		Replicas:    max(o.Replicas, 1),
		MaxAge:      o.MaxAge,
		MaxBytes:    o.MaxBytes,
		AllowRollup: true,
		// The relay publishes batches to replicated streams.
		AllowAtomicPublish: true,
		// Messages carry no IDs for NATS to deduplicate by. A server that starts looks for IDs
		// in all messages younger than this.
		Duplicates: 100 * time.Millisecond,
	}
	preset := int64(DefaultFileBytes)
	if o.Memory {
		c.Storage, preset = jetstream.MemoryStorage, DefaultMemoryBytes
	}
	if c.MaxAge == 0 {
		c.MaxAge = DefaultMaxAge
	}
	if c.MaxBytes == 0 {
		c.MaxBytes = preset
	}
	return c
}
