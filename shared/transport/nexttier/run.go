package nexttier

import (
	"context"
	"io"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"time"

	"triune.dev/shared/transport/distrust"
)

const (
	// downProbeFactor is how many times more often replicas that are down are probed.
	downProbeFactor = 8
	// probeTimeout bounds one probe.
	probeTimeout = time.Second
)

// Run resolves names, probes replicas and reloads credentials until ctx ends. Then it ends
// streams and upgraded connections, and closes the other connections once their short requests
// are answered; further requests get 503. Call it once, and end it after the server has drained
// its requests. It returns nil.
func (p *Proxy) Run(ctx context.Context) error {
	defer p.goroutines.Wait()
	defer p.shutdown()
	ticker := time.NewTicker(p.config.ProbeInterval / downProbeFactor)
	defer ticker.Stop()
	var k maintenance
	for {
		k.run(p, time.Now())
		select {
		case <-ctx.Done():
			return nil
		case <-p.wake:
			k.resolveAt = time.Time{}
		case <-ticker.C:
		}
	}
}

// maintainSoon makes Run resolve names and reload credentials now.
func (p *Proxy) maintainSoon() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// shutdown ends streams and closes all replicas.
func (p *Proxy) shutdown() {
	p.cancel()
	p.streams.close()
	p.resolving.Lock()
	defer p.resolving.Unlock()
	for _, r := range *p.replicas.Load() {
		r.close()
	}
}

// maintenance is the state of Run.
type maintenance struct {
	resolveAt            time.Time
	resolving            chan struct{}
	lastCredentialsError string // the last one that was logged
}

// run starts the lookups and probes that are due, in goroutines, after it has read the
// credentials again.
func (k *maintenance) run(p *Proxy, now time.Time) {
	switch changed, err := p.credentials.refresh(); {
	case err != nil && err.Error() != k.lastCredentialsError:
		k.lastCredentialsError = err.Error()
		p.config.Logger.Error(err, "front-proxy credentials not reloaded")
	case err == nil:
		k.lastCredentialsError = ""
		if changed {
			p.config.Logger.Info("front-proxy credentials changed")
			for _, r := range *p.replicas.Load() {
				r.replaceConns()
				r.nextProbe = time.Time{}
			}
		}
	}
	if !now.Before(k.resolveAt) && k.resolverIdle() {
		k.resolveAt = now.Add(p.config.ResolveInterval)
		done := make(chan struct{})
		k.resolving = done
		p.goroutines.Go(func() {
			defer close(done)
			ctx, cancel := context.WithTimeout(p.ctx, p.config.ResolveInterval)
			defer cancel()
			p.resolve(ctx)
		})
	}
	for _, r := range *p.replicas.Load() {
		if now.Before(r.nextProbe) || !r.probing.CompareAndSwap(false, true) {
			continue
		}
		r.nextProbe = now.Add(p.config.ProbeInterval)
		if condition(r.condition.Load()) == down {
			r.nextProbe = now.Add(p.config.ProbeInterval / downProbeFactor)
		}
		p.goroutines.Go(func() {
			defer r.probing.Store(false)
			p.probe(r)
		})
	}
}

// resolverIdle reports whether no lookup is running.
func (k *maintenance) resolverIdle() bool {
	select {
	case <-k.resolving:
		return true
	default:
		return k.resolving == nil
	}
}

// resolve looks up all names and replaces the replicas. A name that cannot be resolved keeps its
// replicas.
func (p *Proxy) resolve(ctx context.Context) {
	p.resolving.Lock()
	defer p.resolving.Unlock()
	if p.ctx.Err() != nil {
		return
	}
	old := *p.replicas.Load()
	var found []*replica
	for _, t := range p.targets {
		keep := func(r *replica) bool { return r.target == t }
		if t.fixed() {
			found = append(found, filter(old, keep)...)
			continue
		}
		addresses, err := p.config.Resolver.LookupHost(ctx, t.host)
		if err != nil {
			p.config.Logger.V(2).Info("name not resolved", "host", t.host, "err", err)
			found = append(found, filter(old, keep)...)
			continue
		}
		slices.Sort(addresses)
		for _, ip := range slices.Compact(addresses) {
			if _, err := netip.ParseAddr(ip); err != nil {
				continue
			}
			known := filter(old, func(r *replica) bool { return r.target == t && r.ip == ip })
			if len(known) == 0 {
				known = []*replica{p.newReplica(t, ip)}
				p.config.Logger.Info("replica found", "address", known[0].address)
			}
			found = append(found, known...)
		}
	}
	p.replicas.Store(&found)
	for _, r := range old {
		if !slices.Contains(found, r) {
			p.config.Logger.Info("replica gone", "address", r.address)
			r.close()
		}
	}
}

func filter(replicas []*replica, keep func(*replica) bool) []*replica {
	var filtered []*replica
	for _, r := range replicas {
		if keep(r) {
			filtered = append(filtered, r)
		}
	}
	return filtered
}

// probe checks the readiness of r over a connection that requests use, too.
func (p *Proxy) probe(r *replica) {
	ctx, cancel := context.WithTimeout(p.ctx, probeTimeout)
	defer cancel()
	conn, err := r.pools[short].acquire(ctx, 0, probeTimeout)
	if err != nil {
		p.markDown(r, err)
		return
	}
	header := http.Header{"User-Agent": {"triune-next-tier"}, distrust.ChallengeHeader: p.challenge}
	if !p.config.ForwardCredentials { // otherwise the client certificate identifies the probe
		if err := p.identity.setHeaders(header, p.config.ProbeUser); err != nil {
			conn.Release()
			p.config.Logger.Error(err, "probe user cannot be asserted")
			return
		}
	}
	res, err := conn.RoundTrip((&http.Request{
		Method: http.MethodGet,
		URL:    &url.URL{Scheme: "https", Host: r.target.authority, Path: p.config.ProbePath},
		Host:   r.target.authority,
		Header: header,
	}).WithContext(ctx))
	if err != nil {
		conn.streamReset(0)
		// A replica may hang: new requests should notice on new connections, within the
		// dial timeout. Not after the first failure, because handshakes would add to the
		// load of a slow replica.
		if r.missedProbes++; r.missedProbes == 2 {
			r.replaceConns()
		}
		p.markDown(r, err)
		return
	}
	r.missedProbes = 0
	defer res.Body.Close()
	// Read the body, which is short, to end the stream without a reset.
	_, _ = io.CopyN(io.Discard, res.Body, 64<<10)
	// Only authentication answers a probe with 401.
	if !p.checkDistrust(r, res) && res.StatusCode == http.StatusUnauthorized {
		p.markDistrusting(r)
	}
	found := unready
	if res.StatusCode == http.StatusOK {
		found = ready
	}
	p.setCondition(r, found, nil)
}

// markDown records that r could not be reached.
func (p *Proxy) markDown(r *replica, err error) {
	if p.ctx.Err() == nil {
		p.setCondition(r, down, err)
	}
}

// markReachable records a successful connection to r.
func (p *Proxy) markReachable(r *replica) {
	if condition(r.condition.Load()) == down {
		p.setCondition(r, unready, nil)
		p.maintainSoon() // the probe will determine whether it is ready
	}
}

// setCondition sets the condition of r and logs changes.
func (p *Proxy) setCondition(r *replica, now condition, err error) {
	before := condition(r.condition.Swap(int32(now)))
	first := !r.conditionKnown.Swap(true)
	if before == now && (!first || now == ready) {
		return
	}
	if now == down {
		p.metrics.failures.Inc()
		p.maintainSoon() // its name may have a new address
		p.config.Logger.Info("replica is down", "address", r.address, "err", err)
		return
	}
	p.config.Logger.Info("replica answers", "address", r.address, "condition", now.String())
}
