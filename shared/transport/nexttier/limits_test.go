package nexttier

import (
	"bufio"
	"context"
	"crypto/tls"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apiserver/pkg/authentication/user"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"

	"triune.dev/shared/transport/tierclient"
)

// acquireAll acquires as many shares as u can get.
func acquireAll(l *limits, u user.Info) (acquired []share) {
	for {
		s, ok := l.acquire(u, nil)
		if !ok {
			return acquired
		}
		acquired = append(acquired, s)
	}
}

func newUser(name string, groups ...string) user.Info {
	return &user.DefaultInfo{Name: name, Groups: append(groups, user.AllAuthenticated)}
}

var stranger = &user.DefaultInfo{Name: user.Anonymous, Groups: []string{user.AllUnauthenticated}}

func TestSharesLeaveRoom(t *testing.T) {
	const alone = 600
	t.Run("one user", func(t *testing.T) {
		if n := len(acquireAll(newLimits(alone), newUser("a"))); n != alone {
			t.Errorf("a user alone has %d", n)
		}
	})
	t.Run("many users of many groups", func(t *testing.T) {
		l := newLimits(alone)
		const users = 300
		for i := range users {
			if n := len(acquireAll(l, newUser("u"+strconv.Itoa(i), "system:serviceaccounts:"+strconv.Itoa(i)))); n < 1 {
				t.Fatalf("user %d has nothing", i)
			}
		}
	})
	t.Run("many users of a group", func(t *testing.T) {
		l := newLimits(alone)
		all := 0
		for i := range 1000 {
			all += len(acquireAll(l, newUser("u"+strconv.Itoa(i), "system:serviceaccounts:mallory")))
		}
		if all > 3*alone/2 {
			t.Errorf("a group has %d", all)
		}
		if n := len(acquireAll(l, newUser("bob"))); n < alone/3 {
			t.Errorf("a user of another group has %d", n)
		}
	})
	t.Run("the cluster's machinery", func(t *testing.T) {
		for _, u := range []user.Info{
			newUser(user.KubeScheduler), newUser("system:node:a", user.NodesGroup),
			newUser("system:serviceaccount:kube-system:a", "system:serviceaccounts", "system:serviceaccounts:kube-system"),
		} {
			l := newLimits(alone)
			for i := range 1000 {
				acquireAll(l, newUser("u"+strconv.Itoa(i)))
			}
			if n := len(acquireAll(l, u)); n != alone {
				t.Errorf("beside a thousand others %s has %d", u.GetName(), n)
			}
		}
	})
	t.Run("strangers", func(t *testing.T) {
		l := newLimits(alone)
		if n := len(acquireAll(l, stranger)); n != alone/10 {
			t.Errorf("strangers have %d", n)
		}
		if n := len(acquireAll(l, newUser("a"))); n != alone {
			t.Errorf("beside strangers a user has %d", n)
		}
		if n := len(acquireAll(l, newUser(tierclient.UserPrefix+"core"))); n != alone/4 {
			t.Errorf("beside strangers a tier has %d", n)
		}
	})
	t.Run("a tier's own", func(t *testing.T) {
		l := newLimits(alone)
		own := newUser(tierclient.UserPrefix+"core", user.SystemPrivilegedGroup)
		for ok := true; ok; {
			_, ok = l.acquire(own, &apirequest.RequestInfo{Resource: "tokenreviews"})
		}
		if _, ok := l.acquire(own, &apirequest.RequestInfo{Resource: "roles"}); !ok {
			t.Error("reviews of tokens keep informers waiting")
		}
	})
	t.Run("system:masters", func(t *testing.T) {
		l := newLimits(1)
		for range 100 {
			if _, ok := l.acquire(newUser("admin", user.SystemPrivilegedGroup), nil); !ok {
				t.Fatal("an administrator is limited")
			}
		}
	})
	t.Run("what is given back", func(t *testing.T) {
		l := newLimits(alone)
		for _, s := range acquireAll(l, newUser("a")) {
			s.release()
		}
		for i := range 2 * maxCounters {
			s, ok := l.acquire(newUser("u"+strconv.Itoa(i)), nil)
			if !ok {
				t.Fatalf("user %d has nothing", i)
			}
			s.release()
		}
		if e := &l.users; e.inUse != 0 || len(e.users) > maxCounters {
			t.Errorf("%d are taken, %d users are remembered", e.inUse, len(e.users))
		}
	})
}

// The share of a slot is released once, in any order of release and replace.
func TestSlotIsReleasedOnce(t *testing.T) {
	l, slow := newLimits(10), newLimits(10)
	acquired, _ := l.acquire(newUser("a"), nil)
	s := slot{current: acquired}
	later, _ := slow.acquire(newUser("a"), nil)
	s.replace(later)
	if l.users.inUse != 0 || slow.users.inUse != 1 {
		t.Errorf("%d and %d are taken", l.users.inUse, slow.users.inUse)
	}
	s.release()
	s.release()
	later, _ = slow.acquire(newUser("a"), nil)
	s.replace(later) // after the release
	if slow.users.inUse != 0 {
		t.Errorf("%d are taken", slow.users.inUse)
	}
}

func as(u user.Info) func(context.Context) context.Context {
	return func(ctx context.Context) context.Context { return apirequest.WithUser(ctx, u) }
}

// sendHTTP1 opens an HTTP/1.1 connection, sends text and leaves the connection open.
func sendHTTP1(t *testing.T, f *front, text string) *bufio.Reader {
	t.Helper()
	config := f.client.Transport.(*http.Transport).TLSClientConfig.Clone()
	config.NextProtos = []string{"http/1.1"}
	conn, err := tls.Dial("tcp", f.Listener.Addr().String(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if _, err := io.WriteString(conn, text); err != nil {
		t.Fatal(err)
	}
	return bufio.NewReader(conn)
}

// Uploads that stall after one byte do not block other clients.
func TestStalledUploadsBlockNoOtherClient(t *testing.T) {
	const limit, attackers = 40, 60
	for name, attacker := range map[string]user.Info{"strangers": stranger, "a user": newUser("mallory")} {
		t.Run(name, func(t *testing.T) {
			var entered atomic.Int64
			b := startBackend(t, func(w http.ResponseWriter, r *http.Request) {
				if r.Method != http.MethodPost {
					return
				}
				entered.Add(1)
				if u, _ := apirequest.UserFrom(r.Context()); u.GetName() == user.Anonymous {
					http.Error(w, "forbidden", http.StatusForbidden)
					return
				}
				_, _ = io.Copy(io.Discard, r.Body)
			})
			c := testConfig(b.url())
			c.MaxInFlight = limit
			p := startProxy(t, c)
			others, attack := startFront(t, p), startFront(t, p, as(attacker))
			for range attackers {
				sendHTTP1(t, attack, "POST /api/v1/namespaces/n/configmaps HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{")
			}
			eventually(t, "the attack has begun", func() bool { return entered.Load() >= limit/10 })
			for range 50 {
				if a := others.get(t, "/api/v1/pods"); a.code != http.StatusOK {
					t.Fatalf("answer %d %s", a.code, a.body)
				}
				if a := others.do(t, others.request(t, http.MethodPost, "/api/v1/pods", strings.NewReader("{}"))); a.code != http.StatusOK {
					t.Fatalf("answer %d %s", a.code, a.body)
				}
			}
		})
	}
}

// Both the next tier and the proxy can answer before the body has arrived.
func TestAnswerBeforeTheBodyOfHTTP1(t *testing.T) {
	b := startBackend(t, func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "forbidden", http.StatusForbidden) })
	c := testConfig(b.url())
	c.MaxInFlight = 1
	p := startProxy(t, c)
	f := startFront(t, p)
	for _, want := range []int{http.StatusForbidden, http.StatusTooManyRequests} {
		if want == http.StatusTooManyRequests {
			acquired, ok := p.limits.acquire(alice, nil)
			if !ok {
				t.Fatal("the slot has not been given back")
			}
			defer acquired.release()
		}
		answers := sendHTTP1(t, f, "POST /api/v1/pods HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{")
		res, err := http.ReadResponse(answers, nil)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode != want || !res.Close {
			t.Errorf("answer %v, the connection is closed: %v", res.Status, res.Close)
		}
	}
}

// Unread responses do not block other clients, and their own client not for long.
func TestUnreadResponsesBlockNoOtherClient(t *testing.T) {
	large := make([]byte, 32<<20)
	b := startBackend(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/api/v1/pods" {
			w.Header().Set("Content-Length", strconv.Itoa(len(large)))
			_, _ = w.Write(large)
		}
	})
	c := testConfig(b.url())
	c.MaxInFlight = 8
	p := startProxy(t, c)
	others, attack := startFront(t, p), startFront(t, p, as(newUser("mallory")))
	for range c.MaxInFlight {
		res, err := http.ReadResponse(sendHTTP1(t, attack, "GET /api/v1/pods HTTP/1.1\r\nHost: x\r\n\r\n"), nil)
		if err != nil {
			t.Fatal(err)
		}
		if res.StatusCode != http.StatusOK {
			t.Fatalf("answer %v", res.Status)
		}
	}
	if a := attack.get(t, "/api"); a.code != http.StatusTooManyRequests {
		t.Errorf("with all slots taken: answer %d", a.code)
	}
	for range 50 {
		if a := others.get(t, "/api"); a.code != http.StatusOK {
			t.Fatalf("answer %d %s", a.code, a.body)
		}
	}
	eventually(t, "slow answers have given up their slots", func() bool { return attack.get(t, "/api").code == http.StatusOK })
	eventually(t, "all count as slow", func() bool {
		s := &p.slowLimits.users
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.inUse == c.MaxInFlight
	})
}

// An unread response ends at the deadline of its request.
func TestUnreadResponseEndsAtTheDeadline(t *testing.T) {
	large := make([]byte, 32<<20)
	b := startBackend(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(large) })
	p := startProxy(t, testConfig(b.url()))
	returned := make(chan struct{})
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer close(returned)
		p.ServeHTTP(w, r)
	})
	f := startFront(t, handler, func(ctx context.Context) context.Context {
		ctx, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
		context.AfterFunc(ctx, cancel)
		return ctx
	})
	sendHTTP1(t, f, "GET /api/v1/pods HTTP/1.1\r\nHost: x\r\n\r\n")
	<-returned
}

// BenchmarkLimits measures the cost of the limits per request. "counter" is a single counter of
// requests in flight, for comparison.
//
//	go test -run '^$' -bench Limits ./shared/transport/nexttier
func BenchmarkLimits(b *testing.B) {
	info := &apirequest.RequestInfo{Resource: "pods"}
	b.Run("counter", func(b *testing.B) {
		b.ReportAllocs()
		var inFlight atomic.Int64
		for b.Loop() {
			if inFlight.Add(1) > 600 {
				b.Fatal("refused")
			}
			inFlight.Add(-1)
		}
	})
	for name, u := range map[string]user.Info{
		"user":            newUser("alice", "dev"),
		"service account": newUser("system:serviceaccount:kube-system:replicaset-controller", "system:serviceaccounts", "system:serviceaccounts:kube-system"),
		"administrator":   newUser("admin", user.SystemPrivilegedGroup),
	} {
		run := func(b *testing.B, l *limits) {
			acquired, ok := l.acquire(u, info)
			if !ok {
				b.Fatal("refused")
			}
			requestSlot := &slot{current: acquired}
			requestSlot.release()
			requestSlot.release()
		}
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			l := newLimits(600)
			for b.Loop() {
				run(b, l)
			}
		})
		b.Run(name+" parallel", func(b *testing.B) {
			b.ReportAllocs()
			l := newLimits(600)
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					run(b, l)
				}
			})
		})
	}
}
