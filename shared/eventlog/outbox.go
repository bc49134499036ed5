package eventlog

// outgoing is a message that waits to be published.
type outgoing struct {
	message
	subject string
	size    int
	// barrier is published while nothing else of its stream is under way, and
	// nothing else is before it is acknowledged.
	barrier bool
}

// limits say how much of a stream may be under way without being acknowledged.
type limits struct {
	// units is how many acknowledgements may be outstanding, and messages how many
	// messages one of them may stand for: an atomic batch, where there are several.
	units, messages int
}

var (
	// pipelined is for streams of one replica: it keeps the server busy, and a
	// batch costs such a server a directory, files, and a flush to disk.
	pipelined = limits{units: 1024, messages: 1}
	// batched is for replicated streams. A batch is checked before anything of it
	// is proposed, and the next one is made of what has come meanwhile.
	batched = limits{units: 1, messages: 1000}
	// single is for servers that refuse batches.
	single = limits{units: 1, messages: 1}
)

const (
	// batchBytes bounds what is in a batch of several messages; the server holds it
	// in memory until it is complete.
	batchBytes = 4 << 20
	// pendingBytes bounds what is sent and not acknowledged. While queuedBytes wait,
	// nothing more is taken from etcd.
	pendingBytes = 16 << 20
	queuedBytes  = 16 << 20
)

// outbox holds the messages of one stream that wait to be published, and decides
// what is sent when. It does no I/O and is used by one goroutine.
type outbox struct {
	limits limits
	queue  []outgoing
	head   int // the queue begins here
	bytes  int // of the queue
}

func (o *outbox) push(m outgoing) {
	// What was taken is let go of here, as next's caller may still use it before.
	if o.head > 0 && (o.empty() || o.head >= 1024 && 2*o.head >= len(o.queue)) {
		n := copy(o.queue, o.queue[o.head:])
		clear(o.queue[n:])
		o.queue, o.head = o.queue[:n], 0
	}
	o.queue = append(o.queue, m)
	o.bytes += m.size
}

func (o *outbox) empty() bool { return o.head == len(o.queue) }

// full reports whether the outbox should get no more before it has sent some.
func (o *outbox) full() bool { return o.bytes >= queuedBytes }

// next takes what is to be sent now, while units with bytes are under way: one
// message, or a batch. It returns nil where that has to wait. What it returns is
// valid until the next push.
//
// A batch ends at the end of a revision, unless that alone is more than a batch
// takes, and after progress, which may replace only what is not in its own batch.
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
