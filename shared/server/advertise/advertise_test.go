package advertise_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"triune.dev/shared/server/advertise"
)

// leases records what a reconciler is asked for.
type leases struct {
	calls []string
	err   error
}

func (l *leases) ReconcileEndpoints(service string, ip net.IP, ports []corev1.EndpointPort, reconcilePorts bool) error {
	l.calls = append(l.calls, fmt.Sprintf("%s has %s %s %d %t", service, ip, ports[0].Name, ports[0].Port, reconcilePorts))
	return l.err
}

func (l *leases) RemoveEndpoints(service string, ip net.IP, _ []corev1.EndpointPort) error {
	l.calls = append(l.calls, fmt.Sprintf("%s loses %s", service, ip))
	return l.err
}

func TestHandler(t *testing.T) {
	for _, tc := range []struct {
		name, method, body string
		err                error
		code               int
		want               []string
	}{
		{"an address", "PUT", `{"address":"10.0.0.1","port":6443}`, nil, 200, []string{"kubernetes has 10.0.0.1 https 6443 true"}},
		{"IPv6", "PUT", `{"address":"fd00::1","port":443}`, nil, 200, []string{"kubernetes has fd00::1 https 443 true"}},
		{"withdrawn", "DELETE", `{"address":"10.0.0.1","port":6443}`, nil, 200, []string{"kubernetes loses 10.0.0.1"}},
		{"etcd is down", "PUT", `{"address":"10.0.0.1","port":6443}`, errors.New("no etcd"), 500, []string{"kubernetes has 10.0.0.1 https 6443 true"}},
		{"another method", "GET", "", nil, 405, nil},
		{"no body", "PUT", "", nil, 400, nil},
		{"no address", "PUT", `{"port":6443}`, nil, 400, nil},
		{"a name", "PUT", `{"address":"example.com","port":6443}`, nil, 400, nil},
		{"loopback", "PUT", `{"address":"127.0.0.1","port":6443}`, nil, 400, nil},
		{"link-local", "PUT", `{"address":"169.254.169.254","port":80}`, nil, 400, nil},
		{"no port", "PUT", `{"address":"10.0.0.1"}`, nil, 400, nil},
		{"port 70000", "PUT", `{"address":"10.0.0.1","port":70000}`, nil, 400, nil},
		{"too long", "PUT", `{"port":6443,` + strings.Repeat(" ", 2000) + `"address":"10.0.0.1"}`, nil, 400, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			l := &leases{err: tc.err}
			w := httptest.NewRecorder()
			advertise.Handler(l).ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), tc.method, advertise.Path, strings.NewReader(tc.body)))
			if w.Code != tc.code {
				t.Errorf("status %d %s, want %d", w.Code, w.Body, tc.code)
			}
			if diff := cmp.Diff(tc.want, l.calls); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// TestAdvertiser: an address is advertised when the server is ready, in time for its lease of
// 15 s, also after an error, and withdrawn at the end.
func TestAdvertiser(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ready, down atomic.Bool
		var sent []string
		began := time.Now()
		a, err := advertise.New(advertise.Config{
			Endpoint: advertise.Endpoint{Address: net.ParseIP("10.0.0.1"), Port: 6443},
			Ready: func(context.Context) error {
				if !ready.Load() {
					return errors.New("not ready")
				}
				return nil
			},
			Send: func(_ context.Context, method string, body []byte) error {
				sent = append(sent, fmt.Sprintf("%v %s %s", time.Since(began).Round(time.Second), method, body))
				if down.Load() {
					return errors.New("core is down")
				}
				return nil
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { a.Run(ctx); close(ended) }()
		time.Sleep(10 * time.Second)
		ready.Store(true)
		time.Sleep(6 * time.Second)
		down.Store(true)
		time.Sleep(10 * time.Second)
		down.Store(false)
		stop()
		<-ended
		if err := a.Withdraw(); err != nil {
			t.Error(err)
		}
		const body = ` {"address":"10.0.0.1","port":6443}`
		want := []string{"10s PUT" + body, "15s PUT" + body, "20s PUT" + body, "25s PUT" + body, "26s DELETE" + body}
		if diff := cmp.Diff(want, sent); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
}

func TestUnreachableAddress(t *testing.T) {
	if _, err := advertise.New(advertise.Config{Endpoint: advertise.Endpoint{Address: net.ParseIP("127.0.0.1"), Port: 6443}}); err == nil {
		t.Error("a loopback address is advertised")
	}
}
