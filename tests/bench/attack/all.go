package attack

import (
	"context"
	"errors"
	"fmt"
)

// forbidden is a path to which clients without permissions get 403.
const forbidden = "/api/v1/namespaces/default/pods"

// All lists the attacks; the last one may leave a server with pending work.
func All() []Attack {
	return []Attack{
		{
			Name: "headers", Title: "20,000 cookies in a request, or a header block in 8,000 frames; anonymous, 40 a second",
			perSecond: 40, clients: 8,
			client: func(s *Site, _ int) client { return &eachAnew{s, []move{{frames: cookies}, {frames: fragments}}} },
		}, {
			Name: "bodies", Title: "700 POSTs whose bodies never come, anonymous",
			clients: 700,
			client: func(s *Site, _ int) client {
				return &http1{site: s, request: func(int) ([]byte, error) {
					return []byte("POST /api/v1/namespaces/default/configmaps HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{"), nil
				}, unanswered: true}
			},
		}, {
			Name: "closes", Title: "answers that end a connection, 400 a second, and resets by hundreds and broken frames, 10 each; anonymous",
			perSecond: 420, clients: 16,
			client: func(s *Site, _ int) client {
				refused := &http1{site: s, request: get(func(int) string { return forbidden })}
				return &mixed{rare: &eachAnew{s, []move{{frames: resets, silent: true}, {frames: broken}}}, often: refused, every: 21}
			},
		}, {
			Name: "namespaces", Title: "requests that name a namespace of 900 kB, each another, 15 a second of strangers and of a user without rights, and 15 with certificates of nobody",
			perSecond: 30, clients: 8,
			client: func(s *Site, _ int) client {
				huge := get(func(i int) string { return "/api/v1/namespaces/" + hugeName(i) + "/pods" })
				return &inTurn{[]client{
					&http1{site: s, request: huge}, &impostor{site: s},
					&http1{site: s, request: huge, token: func(int) string { return s.Nobody }}, &impostor{site: s},
				}}
			},
		}, {
			Name: "tokens", Title: "bearer tokens of nobody, each another, 400 a second",
			perSecond: 400, clients: 16,
			client: func(s *Site, _ int) client {
				return &http1{site: s, request: get(func(int) string { return forbidden }), token: junk}
			},
		}, {
			Name: "unread", Title: "700 answers of 3 MB that are not read, by a user without rights",
			clients: 7,
			client:  func(s *Site, _ int) client { return &unread{site: s} },
		},
	}
}

// inTurn makes its attacks by several clients in turn.
type inTurn struct{ clients []client }

func (c *inTurn) attack(ctx context.Context, i int) error {
	return c.clients[i%len(c.clients)].attack(ctx, i)
}

func (c *inTurn) close() {
	for _, each := range c.clients {
		each.close()
	}
}

// mixed makes one of every few attacks by one client, and the others by another.
type mixed struct {
	rare, often client
	every       int
}

func (c *mixed) attack(ctx context.Context, i int) error {
	if i%c.every == 0 {
		return c.rare.attack(ctx, i/c.every)
	}
	return c.often.attack(ctx, i)
}

func (c *mixed) close() {
	c.rare.close()
	c.often.close()
}

var errCutOff = errors.New("the connection has ended")

func errStatus(code int) error { return fmt.Errorf("status %d", code) }
