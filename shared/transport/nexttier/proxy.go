package nexttier

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"

	"triune.dev/shared/transport/distrust"
)

const (
	// maxAttempts is how often one request is sent at most where it may have been processed.
	maxAttempts = 3
	// maxRefusals is how often a server may say that it has not processed it.
	maxRefusals = 8
)

// Proxy passes requests on to the replicas of the next tier. Make it with [New],
// run it with [Proxy.Run]; it serves before Run is called, but then learns what
// has become of its replicas only from requests.
type Proxy struct {
	config   Config
	targets  []target
	identity *identity
	creds    *credentials
	metrics  *metrics
	streams  openStreams
	// challenge is the header value of [distrust.Challenge].
	challenge []string

	// background ends with Run; running counts the goroutines that end with it.
	background context.Context
	end        context.CancelFunc
	running    sync.WaitGroup

	// replicas is replaced as a whole, under resolving.
	replicas  atomic.Pointer[[]*replica]
	resolving sync.Mutex
	// turn makes equally good replicas take turns.
	turn atomic.Uint32
	// limits are for requests in flight, slow for answers that their clients do not read.
	limits, slow *limits
	// kick asks Run to look after things at once.
	kick chan struct{}
}

// New returns the proxy for config. It reads the credentials, and reports
// everything that is wrong with config; it does not connect.
func New(config Config) (*Proxy, error) {
	c, targets, err := config.completed()
	if err != nil {
		return nil, err
	}
	creds, err := newCredentials(c)
	if err != nil {
		return nil, err
	}
	p := &Proxy{
		config: c, targets: targets, identity: newIdentity(c.Headers), creds: creds,
		challenge: []string{rand.Text()}, kick: make(chan struct{}, 1),
	}
	if c.MaxInFlight > 0 {
		p.limits, p.slow = newLimits(c.MaxInFlight), newLimits(slowAnswers)
	}
	p.background, p.end = context.WithCancel(context.Background())
	p.streams.init(p.background, &p.running)
	var replicas []*replica
	for _, t := range targets {
		if t.fixed() {
			replicas = append(replicas, p.newReplica(t, t.host))
		}
	}
	p.replicas.Store(&replicas)
	if p.metrics, err = newMetrics(p); err != nil {
		p.end()
		return nil, err
	}
	return p, nil
}

// HandsOver reports whether requests carry credentials in place of users.
func (p *Proxy) HandsOver() bool { return p.config.HandOver }

// ServeHTTP passes req on and its response back. The context of req must hold
// the authenticated user.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	k := kindOf(req)
	u, ok := apirequest.UserFrom(req.Context())
	if !ok {
		p.fail(w, req, k, apierrors.NewInternalError(errors.New("no user in the request's context")))
		return
	}
	info, _ := apirequest.RequestInfoFrom(req.Context())
	held, ok := p.limits.take(u, info)
	if !ok {
		p.fail(w, req, k, status(http.StatusTooManyRequests, metav1.StatusReasonTooManyRequests, "Too many requests, please try again later.", retryAfter))
		return
	}
	x := exchange{kind: k, place: &slot{held: held}, user: u}
	defer x.place.free()
	out, err := p.outgoing(req, u, k)
	if err != nil {
		p.fail(w, req, k, err)
		return
	}
	if k == upgrade {
		p.serveUpgrade(w, req, out, x)
		return
	}
	b := newBody(w, req)
	defer b.finish()
	res, r, err := p.send(out, b, k)
	if err != nil {
		p.fail(w, req, k, err)
		return
	}
	defer r.inFlight[k].Add(-1)
	b.settle()
	p.metrics.answered(k, res.StatusCode)
	if k == stream {
		x.place.free() // It has begun; to go on is for the tier that serves it to allow.
		s := p.streams.open(req.Context(), res.Body)
		defer p.streams.forget(s)
		x.ended = s.ended.Load
	}
	p.relay(w, req, res, x)
}

// fail answers req for the next tier.
func (p *Proxy) fail(w http.ResponseWriter, req *http.Request, k kind, err error) {
	var answer *apierrors.StatusError
	if !errors.As(err, &answer) {
		answer = p.statusFor(req, err)
		p.config.Logger.V(2).Info("request not passed on", "method", req.Method, "path", req.URL.Path, "err", err)
	}
	p.metrics.failed(k, req, err)
	leaveBody(w, req)
	p.config.OnError(w, req, answer)
}

// choice is the replicas that one request may go to, and what it found there.
type choice struct {
	kind       kind
	replicas   []*replica
	candidates []candidate
	few        [4]candidate // what candidates is a part of, usually
	start      int
	// patience is what is left of the time that the request waits for
	// connections; moveOn is the most it waits for one replica if there are more.
	patience, moveOn time.Duration
}

func (p *Proxy) choices(ctx context.Context, k kind) *choice {
	replicas := *p.replicas.Load()
	if len(replicas) == 0 {
		// Nothing is known of any name yet; a request does not wait for Run.
		lookup, cancel := context.WithTimeout(ctx, p.config.GiveUpAfter)
		p.resolve(lookup)
		cancel()
		replicas = *p.replicas.Load()
	}
	c := &choice{
		kind:     k,
		replicas: replicas,
		start:    int(p.turn.Add(1) & 0xffff),
		patience: p.config.GiveUpAfter,
		moveOn:   p.config.MoveOnAfter,
	}
	if c.candidates = c.few[:]; len(replicas) > len(c.few) {
		c.candidates = make([]candidate, len(replicas))
	}
	c.candidates = c.candidates[:len(replicas)]
	return c
}

// wait is how long to wait for a connection to the replica at an index.
func (c *choice) wait(at int) time.Duration {
	for i := range c.candidates {
		if i != at && !c.candidates[i].refused {
			return min(c.patience, c.moveOn)
		}
	}
	return c.patience
}

// next returns the index of the replica to try, or -1 if there is none left.
func (c *choice) next() int {
	if c.patience <= 0 {
		return -1
	}
	for i, r := range c.replicas {
		c.candidates[i].condition = condition(r.condition.Load())
		c.candidates[i].distrusts = r.distrusts.Load()
		c.candidates[i].inFlight = r.inFlight[c.kind].Load()
	}
	return choose(c.candidates, c.start)
}

// send gets a response for out from some replica, whose count of requests in
// flight it leaves one higher. The error is one of those that statusFor knows, or that
// of out's context.
func (p *Proxy) send(out *http.Request, b *body, k kind) (*http.Response, *replica, error) {
	ctx := out.Context()
	choice := p.choices(ctx, k)
	head := headSize(out)
	var last error = &unavailableError{errors.New("no address is known")}
	for attempts, refusals := 0, 0; attempts-refusals < maxAttempts && refusals < maxRefusals; {
		at := choice.next()
		if at < 0 {
			break
		}
		r := choice.replicas[at]
		before := time.Now()
		conn, err := r.pools[k].acquire(ctx, head, choice.wait(at))
		if err != nil {
			if ctx.Err() != nil {
				return nil, nil, context.Cause(ctx)
			}
			choice.patience -= time.Since(before)
			choice.candidates[at].refused = true
			p.lost(r, err)
			last = &unavailableError{fmt.Errorf("connect to %s: %w", r.address, err)}
			continue
		}
		reader, whole := b.attempt()
		if !whole {
			conn.Release()
			conn.answered(head)
			return nil, nil, last
		}
		attempts++
		choice.candidates[at].tried++
		try := out
		if attempts > 1 {
			// A transport may look at the request of a failed attempt a little longer.
			try = out.WithContext(ctx)
			p.metrics.retried[k].Inc()
		}
		try.URL.Host, try.Host = r.target.authority, r.target.authority
		if reader != nil {
			try.Body = reader
		}
		r.inFlight[k].Add(1)
		res, err := conn.RoundTrip(try)
		if err == nil {
			res.Body = newAnswerBody(res.Body, conn, head)
			if !p.distrusted(r, res) {
				return res, r, nil
			}
		} else {
			conn.reset(head)
		}
		r.inFlight[k].Add(-1)
		switch {
		case err == nil:
			_ = res.Body.Close()
			last = errDistrusted
			// Who is known not to be believed has had nothing carried out.
			if !distrust.Marked(res.Header, p.challenge[0]) && !safe(out.Method) {
				return nil, nil, last
			}
		case ctx.Err() != nil:
			return nil, nil, context.Cause(ctx)
		case tooLong(err):
			return nil, nil, errTooLong
		case unprocessed(err):
			refusals++
			last = &unavailableError{fmt.Errorf("request refused by %s: %w", r.address, err)}
		case safe(out.Method):
			last = &brokenError{fmt.Errorf("request to %s: %w", r.address, err)}
		default:
			return nil, nil, &brokenError{fmt.Errorf("request to %s: %w", r.address, err)}
		}
	}
	return nil, nil, last
}

// distrusted reports whether res says that r does not believe the front-proxy
// certificate, and remembers it. A 401 that is not marked is the client's, unless r is
// known to believe nobody: one that is older than the mark.
func (p *Proxy) distrusted(r *replica, res *http.Response) bool {
	switch {
	case res.StatusCode == http.StatusUnauthorized && distrust.Marked(res.Header, p.challenge[0]):
		p.distrusts(r)
		return true
	case res.StatusCode == http.StatusUnauthorized:
		return r.distrusts.Load()
	case res.StatusCode < http.StatusBadRequest && r.distrusts.CompareAndSwap(true, false):
		p.config.Logger.Info("front-proxy certificate accepted again", "address", r.address)
	}
	return false
}

// distrusts notes that r does not believe the front-proxy certificate.
func (p *Proxy) distrusts(r *replica) {
	if r.distrusts.CompareAndSwap(false, true) {
		p.config.Logger.Error(errDistrusted, "next tier answered 401 to an asserted identity", "address", r.address)
		p.lookSoon()
	}
}

// Name is the name of the health check that a Proxy is.
func (p *Proxy) Name() string { return "next-tier-" + p.config.Tier }

// Check returns nil while the next tier can be reached, as far as is known. It
// is a health check of k8s.io/apiserver.
func (p *Proxy) Check(*http.Request) error {
	for _, r := range *p.replicas.Load() {
		if r.known.Load() && condition(r.condition.Load()) != down && !r.distrusts.Load() {
			return nil
		}
	}
	return fmt.Errorf("no replica of the %s tier can be reached", p.config.Tier)
}
