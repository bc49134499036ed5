package eventlog

// outgoing is a message that waits to be published.
type outgoing struct {
	message
	subject string
	size    int
	// barrier makes the message the only one of its stream in flight, until it is acknowledged.
	barrier bool
}

// limits bounds the unacknowledged messages of a stream.
type limits struct {
	// units is the maximum number of outstanding acknowledgements. messages is the maximum
	// number of messages per acknowledgement; several messages form an atomic batch.
	units, messages int
}

var (
	// pipelined is for streams with one replica. It keeps the server busy, and a batch would
	// cost the server a directory, files, and a flush to disk.
	pipelined = limits{units: 1024, messages: 1}
	// batched is for replicated streams. The server checks a batch before it proposes any of
	// it; the next batch collects the messages that arrive meanwhile.
	batched = limits{units: 1, messages: 1000}
	// single is for servers that refuse batches.
	single = limits{units: 1, messages: 1}
)

const (
	// batchBytes bounds a batch of several messages, which the server holds in memory until it
	// is complete.
	batchBytes = 4 << 20
	// pendingBytes bounds the messages that are sent and not acknowledged. Once queuedBytes are
	// waiting, the relay stops reading from etcd.
	pendingBytes = 16 << 20
	queuedBytes  = 16 << 20
)

// outbox queues the messages of one stream and decides when to send which. It does no I/O and
// must be used by one goroutine.
type outbox struct {
	limits limits
	queue  []outgoing
	head   int // index of the first message in queue
	bytes  int // size of the queued messages
}

func (o *outbox) push(m outgoing) {
	// The messages that next returned are released only here, because its caller may use them
	// until the next push.
	if o.head > 0 && (o.empty() || o.head >= 1024 && 2*o.head >= len(o.queue)) {
		n := copy(o.queue, o.queue[o.head:])
		clear(o.queue[n:])
		o.queue, o.head = o.queue[:n], 0
	}
	o.queue = append(o.queue, m)
	o.bytes += m.size
}

func (o *outbox) empty() bool { return o.head == len(o.queue) }

// full reports whether no more messages should be pushed before some are sent.
func (o *outbox) full() bool { return o.bytes >= queuedBytes }

// next removes and returns the messages to send now, while units with the given bytes are in
// flight: one message, or a batch. It returns nil if they have to wait. The result is valid
// until the next push.
//
// A batch ends at the end of a revision, unless that revision alone exceeds a batch. It also
// ends after progress, whose rollup must not replace a message of its own batch.
func (o *outbox) next(units, bytes int) []outgoing {
	if o.empty() || units >= o.limits.units || bytes >= pendingBytes {
		return nil
	}
	waiting := o.queue[o.head:]
	if waiting[0].barrier {
		if units > 0 {
			return nil
		}
		return o.take(1)
	}
	n, whole, size := 0, 0, 0
	for n < len(waiting) && n < o.limits.messages && !waiting[n].barrier {
		m := &waiting[n]
		if size += m.size; n > 0 && size > batchBytes {
			break
		}
		n++
		if m.ends() {
			whole = n
		}
		if m.Type != typeEvent {
			break
		}
	}
	if whole > 0 {
		n = whole
	}
	return o.take(n)
}

func (o *outbox) take(n int) []outgoing {
	taken := o.queue[o.head : o.head+n]
	for i := range taken {
		o.bytes -= taken[i].size
	}
	o.head += n
	return taken
}
