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
	"triune.dev/shared/transport/hoptrace"
)

const (
	// maxAttempts bounds the attempts for a request that may have been processed.
	maxAttempts = 3
	// maxRefusals bounds the attempts that a server refused without processing the request.
	maxRefusals = 8
)

// Proxy sends requests to the replicas of the next tier. Make it with [New] and run it with
// [Proxy.Run]. It serves before Run, but then learns the condition of replicas only from requests.
type Proxy struct {
	config      Config
	targets     []target
	identity    *identity
	credentials *credentials
	metrics     *metrics
	streams     openStreams
	// challenge is the value of the header [distrust.ChallengeHeader].
	challenge []string

	// ctx ends with Run; goroutines counts those that end with it.
	ctx        context.Context
	cancel     context.CancelFunc
	goroutines sync.WaitGroup

	// replicas is replaced as a whole while resolving is locked.
	replicas  atomic.Pointer[[]*replica]
	resolving sync.Mutex
	// nextStart makes equal replicas take turns.
	nextStart atomic.Uint32
	// limits bound requests in flight, and slowLimits responses to slow clients.
	limits, slowLimits *limits
	// wake makes Run do its maintenance now.
	wake chan struct{}
}

// New returns a proxy. It loads the credentials and reports all problems of config; it does not
// connect.
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

// ForwardsCredentials reports whether requests carry the client's credential instead of its
// user.
func (p *Proxy) ForwardsCredentials() bool { return p.config.ForwardCredentials }

// ServeHTTP forwards req and the response. The context of req must hold the authenticated user.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	k := kindOf(req)
	u, ok := apirequest.UserFrom(req.Context())
	if !ok {
		p.fail(w, req, k, apierrors.NewInternalError(errors.New("no user in the request's context")))
		return
	}
	info, _ := apirequest.RequestInfoFrom(req.Context())
	acquired, ok := p.limits.acquire(u, info)
	if !ok {
		p.fail(w, req, k, newStatusError(http.StatusTooManyRequests, metav1.StatusReasonTooManyRequests, "Too many requests, please try again later.", retryAfter))
		return
	}
	x := exchange{kind: k, slot: &slot{current: acquired}, user: u}
	defer x.slot.release()
	out, err := p.outgoing(req, u, k)
	if err != nil {
		p.fail(w, req, k, err)
		return
	}
	x.span = hoptrace.Start(req.Context(), req.Method, p.config.Tier, out.Header)
	defer x.span.End()
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
	p.answered(x, res)
	if k == stream {
		x.slot.release() // the serving tier limits established streams
		s := p.streams.add(req.Context(), res.Body)
		defer p.streams.remove(s)
		x.endedHere = s.endedHere.Load
	}
	p.relay(w, req, res, x)
}

// answered records the response to a request.
func (p *Proxy) answered(x exchange, res *http.Response) {
	p.metrics.answered(x.kind, res.StatusCode)
	hoptrace.SetStatus(x.span, res.StatusCode)
}

// fail answers a request that the next tier has not answered.
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

// selection is the state of choosing replicas for one request.
type selection struct {
	kind       kind
	replicas   []*replica
	candidates []candidate
	buf        [4]candidate // backing array of candidates, usually sufficient
	start      int
	// dialBudget is the remaining time for connecting. maxDialWait bounds the wait for one
	// replica while there are others.
	dialBudget, maxDialWait time.Duration
}

func (p *Proxy) selectReplicas(ctx context.Context, k kind) *selection {
	if len(*p.replicas.Load()) == 0 {
		// No name has been resolved yet; do not wait for Run.
		lookup, cancel := context.WithTimeout(ctx, p.config.GiveUpAfter)
		p.resolve(lookup)
		cancel()
	}
	replicas := p.allowedReplicas(ctx)
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

// dialWait returns how long to wait for a connection to the replica at an index.
func (c *selection) dialWait(at int) time.Duration {
	for i := range c.candidates {
		if i != at && !c.candidates[i].unreachable {
			return min(c.dialBudget, c.maxDialWait)
		}
	}
	return c.dialBudget
}

// next returns the index of the next replica to try, or -1.
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

// send sends out to a replica and returns the response. It increments the replica's number of
// requests in flight; the caller decrements it. The error is the context's or one that statusFor
// handles.
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
			// The transport may still read the request of the failed attempt.
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
			// An unmarked 401 may come from behind authentication, after effects.
			if !distrust.Echoed(res.Header, p.challenge[0]) && !isSafe(out.Method) {
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

// checkDistrust reports whether r refused the front-proxy certificate with res, and records it. An
// unmarked 401 is meant for the client, unless r is known to distrust this tier because its
// release does not mark answers.
func (p *Proxy) checkDistrust(r *replica, res *http.Response) bool {
	switch {
	case res.StatusCode == http.StatusUnauthorized && distrust.Echoed(res.Header, p.challenge[0]):
		p.markDistrusting(r)
		return true
	case res.StatusCode == http.StatusUnauthorized:
		return r.distrusts.Load()
	case res.StatusCode < http.StatusBadRequest && r.distrusts.CompareAndSwap(true, false):
		p.config.Logger.Info("front-proxy certificate accepted again", "address", r.address)
	}
	return false
}

// markDistrusting records that r refuses the front-proxy certificate.
func (p *Proxy) markDistrusting(r *replica) {
	if r.distrusts.CompareAndSwap(false, true) {
		p.config.Logger.Error(errDistrusted, "next tier answered 401 to an asserted identity", "address", r.address)
		p.maintainSoon()
	}
}

// Name returns the name of the health check.
func (p *Proxy) Name() string { return "next-tier-" + p.config.Tier }

// Check returns nil while a replica can be reached, as far as is known. Proxy implements
// k8s.io/apiserver/pkg/server/healthz.HealthChecker.
func (p *Proxy) Check(*http.Request) error {
	for _, r := range *p.replicas.Load() {
		if r.conditionKnown.Load() && condition(r.condition.Load()) != down && !r.distrusts.Load() {
			return nil
		}
	}
	return fmt.Errorf("no replica of the %s tier can be reached", p.config.Tier)
}
