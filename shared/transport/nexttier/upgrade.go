package nexttier

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// halfCloseGrace is how long the next tier may continue to send after the client has closed its
// side.
const halfCloseGrace = 10 * time.Second

// serveUpgrade forwards a request to upgrade, and then copies bytes. It does not retry a request
// that was sent.
//
// proxy.UpgradeAwareHandler of k8s.io/apimachinery does not replace it: it ends the connection when
// the client closes its side, loses the last data of the server (TestUpgradeCopiesBothWays), and
// accepts a switch to another protocol than the requested one (TestRefusedUpgrade).
func (p *Proxy) serveUpgrade(w http.ResponseWriter, req *http.Request, out *http.Request, x exchange) {
	ctx := req.Context()
	conn, r, err := p.dialUpgrade(ctx)
	if err != nil {
		p.fail(w, req, upgrade, err)
		return
	}
	defer conn.Close()
	r.inFlight[upgrade].Add(1)
	defer r.inFlight[upgrade].Add(-1)
	// Close the connection when the request or the proxy ends.
	closeConn := func() { _ = conn.Close() }
	defer context.AfterFunc(ctx, closeConn)()
	defer context.AfterFunc(p.ctx, closeConn)()

	out.URL.Host, out.Host = r.target.authority, r.target.authority
	b := newBody(w, req)
	defer b.finish()
	if reader, _ := b.newAttempt(); reader != nil {
		out.Body = reader
	}
	if err := out.Write(conn); err != nil {
		p.fail(w, req, upgrade, &brokenError{fmt.Errorf("request to %s: %w", r.address, err)})
		return
	}
	reader := bufio.NewReader(conn)
	res, err := http.ReadResponse(reader, out)
	if err != nil {
		p.fail(w, req, upgrade, &brokenError{fmt.Errorf("request to %s: %w", r.address, err)})
		return
	}
	if p.checkDistrust(r, res) {
		p.fail(w, req, upgrade, errDistrusted)
		return
	}
	p.answered(x, res)
	if res.StatusCode != http.StatusSwitchingProtocols {
		p.relay(w, req, res, x)
		return
	}
	x.slot.release() // the serving tier limits established connections
	if asked, got := upgradeProtocol(req.Header), res.Header.Get("Upgrade"); !strings.EqualFold(asked, got) {
		p.fail(w, req, upgrade, apierrors.NewInternalError(fmt.Errorf("the next tier switched to %q when %q was asked for", got, asked)))
		return
	}
	client, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		p.fail(w, req, upgrade, apierrors.NewInternalError(fmt.Errorf("take over the client's connection: %w", err)))
		return
	}
	defer client.Close()
	if err := writeSwitchingProtocols(client, res); err != nil {
		return // the client has gone
	}
	// Read only the buffered data through the buffer: at EOF, the server's reader below it
	// would cancel the request.
	ahead := io.LimitReader(buffered, int64(buffered.Reader.Buffered()))
	splice(client, io.MultiReader(ahead, client), conn, reader)
}

// dialUpgrade connects to a replica with HTTP/1.1.
func (p *Proxy) dialUpgrade(ctx context.Context) (*tls.Conn, *replica, error) {
	choice := p.selectReplicas(ctx, upgrade)
	last := errors.New("no address is known")
	for {
		at := choice.next()
		if at < 0 {
			return nil, nil, &unavailableError{last}
		}
		r := choice.replicas[at]
		before := time.Now()
		dial, cancel := context.WithTimeout(ctx, choice.dialWait(at))
		conn, err := p.credentials.dial(dial, r.address, r.target.serverName, "http/1.1")
		cancel()
		if err == nil {
			p.markReachable(r)
			return conn, r, nil
		}
		if ctx.Err() != nil {
			return nil, nil, context.Cause(ctx)
		}
		choice.dialBudget -= time.Since(before)
		choice.candidates[at].unreachable = true
		p.markDown(r, err)
		last = fmt.Errorf("connect to %s: %w", r.address, err)
	}
}

// writeSwitchingProtocols writes the 101 response to a hijacked connection.
func writeSwitchingProtocols(client io.Writer, res *http.Response) error {
	var head strings.Builder
	fmt.Fprintf(&head, "HTTP/1.1 %d %s\r\n", res.StatusCode, http.StatusText(res.StatusCode))
	if err := res.Header.Write(&head); err != nil {
		return err
	}
	head.WriteString("\r\n")
	_, err := io.WriteString(client, head.String())
	return err
}

// splice copies in both directions until the next tier closes its side, either side fails, or
// halfCloseGrace has passed since the client closed its side. The readers include buffered data.
func splice(client net.Conn, fromClient io.Reader, backend *tls.Conn, fromBackend io.Reader) {
	backendDone, clientDone := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(clientDone)
		if _, err := io.Copy(backend, fromClient); err != nil || backend.CloseWrite() != nil {
			_ = backend.Close()
			return
		}
		timer := time.AfterFunc(halfCloseGrace, func() { _ = backend.Close() })
		<-backendDone
		timer.Stop()
	}()
	_, _ = io.Copy(client, fromBackend) // any end of this direction ends the connection
	close(backendDone)
	_ = client.Close()
	_ = backend.Close()
	<-clientDone
}
