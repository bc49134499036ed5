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
	config      Config
	targets     []target
	identity    *identity
	credentials *credentials
	metrics     *metrics
	streams     openStreams
	// challenge is the header value of [distrust.Challenge].
	challenge []string

	// background ends with Run; running counts the goroutines that end with it.
	ctx        context.Context
	cancel     context.CancelFunc
	goroutines sync.WaitGroup

	// replicas is replaced as a whole, under resolving.
	replicas  atomic.Pointer[[]*replica]
	resolving sync.Mutex
	// turn makes equally good replicas take turns.
	nextStart atomic.Uint32
	// limits are for requests in flight, slow for answers that their clients do not read.
	limits, slowLimits *limits
	// kick asks Run to look after things at once.
	wake chan struct{}
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
		config: c, targets: targets, identity: newIdentity(c.Headers), credentials: creds,
		challenge: []string{rand.Text()}, wake: make(chan struct{}, 1),
	}
	if c.MaxInFlight > 0 {
		p.limits, p.slowLimits = newLimits(c.MaxInFlight), newLimits(slowAnswers)
	}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	p.streams.init(p.ctx, &p.goroutines)
	var replicas []*replica
	for _, t := range targets {
		if t.fixed() {
			replicas = append(replicas, p.newReplica(t, t.host))
		}
	}
	p.replicas.Store(&replicas)
	if p.metrics, err = newMetrics(p); err != nil {
		p.cancel()
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
	held, ok := p.limits.acquire(u, info)
	if !ok {
		p.fail(w, req, k, newStatusError(http.StatusTooManyRequests, metav1.StatusReasonTooManyRequests, "Too many requests, please try again later.", retryAfter))
		return
	}
	x := exchange{kind: k, slot: &slot{current: held}, user: u}
	defer x.slot.release()
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
	b.markAnswered()
	p.metrics.answered(k, res.StatusCode)
	if k == stream {
		x.slot.release() // It has begun; to go on is for the tier that serves it to allow.
		s := p.streams.add(req.Context(), res.Body)
		defer p.streams.remove(s)
		x.endedHere = s.endedHere.Load
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
	limitBodyRead(w, req)
	p.config.OnError(w, req, answer)
}

// choice is the replicas that one request may go to, and what it found there.
type selection struct {
	kind       kind
	replicas   []*replica
	candidates []candidate
	buf        [4]candidate // what candidates is a part of, usually
	start      int
	// patience is what is left of the time that the request waits for
	// connections; moveOn is the most it waits for one replica if there are more.
	dialBudget, maxDialWait time.Duration
}

func (p *Proxy) selectReplicas(ctx context.Context, k kind) *selection {
	replicas := *p.replicas.Load()
	if len(replicas) == 0 {
		// Nothing is known of any name yet; a request does not wait for Run.
		lookup, cancel := context.WithTimeout(ctx, p.config.GiveUpAfter)
		p.resolve(lookup)
		cancel()
		replicas = *p.replicas.Load()
	}
	c := &selection{
		kind:        k,
		replicas:    replicas,
		start:       int(p.nextStart.Add(1) & 0xffff),
		dialBudget:  p.config.GiveUpAfter,
		maxDialWait: p.config.MoveOnAfter,
	}
	if c.candidates = c.buf[:]; len(replicas) > len(c.buf) {
		c.candidates = make([]candidate, len(replicas))
	}
	c.candidates = c.candidates[:len(replicas)]
	return c
}

// wait is how long to wait for a connection to the replica at an index.
func (c *selection) dialWait(at int) time.Duration {
	for i := range c.candidates {
		if i != at && !c.candidates[i].unreachable {
			return min(c.dialBudget, c.maxDialWait)
		}
	}
	return c.dialBudget
}

// next returns the index of the replica to try, or -1 if there is none left.
func (c *selection) next() int {
	if c.dialBudget <= 0 {
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
	choice := p.selectReplicas(ctx, k)
	head := headerSize(out)
	var last error = &unavailableError{errors.New("no address is known")}
	for attempts, refusals := 0, 0; attempts-refusals < maxAttempts && refusals < maxRefusals; {
		at := choice.next()
		if at < 0 {
			break
		}
		r := choice.replicas[at]
		before := time.Now()
		conn, err := r.pools[k].acquire(ctx, head, choice.dialWait(at))
		if err != nil {
			if ctx.Err() != nil {
				return nil, nil, context.Cause(ctx)
			}
			choice.dialBudget -= time.Since(before)
			choice.candidates[at].unreachable = true
			p.markDown(r, err)
			last = &unavailableError{fmt.Errorf("connect to %s: %w", r.address, err)}
			continue
		}
		reader, whole := b.newAttempt()
		if !whole {
			conn.Release()
			conn.streamDone(head)
			return nil, nil, last
		}
		attempts++
		choice.candidates[at].attempts++
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
			res.Body = newResponseBody(res.Body, conn, head)
			if !p.checkDistrust(r, res) {
				return res, r, nil
			}
		} else {
			conn.streamReset(head)
		}
		r.inFlight[k].Add(-1)
		switch {
		case err == nil:
			_ = res.Body.Close()
			last = errDistrusted
			// Who is known not to be believed has had nothing carried out.
			if !distrust.Marked(res.Header, p.challenge[0]) && !isSafe(out.Method) {
				return nil, nil, last
			}
		case ctx.Err() != nil:
			return nil, nil, context.Cause(ctx)
		case isHeaderTooLarge(err):
			return nil, nil, errHeaderTooLarge
		case isUnprocessed(err):
			refusals++
			last = &unavailableError{fmt.Errorf("request refused by %s: %w", r.address, err)}
		case isSafe(out.Method):
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
func (p *Proxy) checkDistrust(r *replica, res *http.Response) bool {
	switch {
	case res.StatusCode == http.StatusUnauthorized && distrust.Marked(res.Header, p.challenge[0]):
		p.markDistrusting(r)
		return true
	case res.StatusCode == http.StatusUnauthorized:
		return r.distrusts.Load()
	case res.StatusCode < http.StatusBadRequest && r.distrusts.CompareAndSwap(true, false):
		p.config.Logger.Info("front-proxy certificate accepted again", "address", r.address)
	}
	return false
}

// distrusts notes that r does not believe the front-proxy certificate.
func (p *Proxy) markDistrusting(r *replica) {
	if r.distrusts.CompareAndSwap(false, true) {
		p.config.Logger.Error(errDistrusted, "next tier answered 401 to an asserted identity", "address", r.address)
		p.maintainSoon()
	}
}

// Name is the name of the health check that a Proxy is.
func (p *Proxy) Name() string { return "next-tier-" + p.config.Tier }

// Check returns nil while the next tier can be reached, as far as is known. It
// is a health check of k8s.io/apiserver.
func (p *Proxy) Check(*http.Request) error {
	for _, r := range *p.replicas.Load() {
		if r.conditionKnown.Load() && condition(r.condition.Load()) != down && !r.distrusts.Load() {
			return nil
		}
	}
	return fmt.Errorf("no replica of the %s tier can be reached", p.config.Tier)
}
