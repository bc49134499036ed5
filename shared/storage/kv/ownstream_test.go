package kv

import (
	"errors"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"triune.dev/shared/testing/etcdtest"
)

// An idle etcd confirms the revision at which the watch began.
func TestProgressOfAnIdleEtcd(t *testing.T) {
	server := etcdtest.Start(t)
	for name, etcd := range map[string]*clientv3.Client{"gRPC": server.Dial(t), "in process": server.InProcess()} {
		t.Run(name, func(t *testing.T) {
			c := New(etcd)
			key := "/" + name + "/a"
			first := mustPut(t, c, Put{Key: key, Value: []byte("1")})
			// A change of another key lies between the watch's start and the current
			// revision.
			present := mustPut(t, c, Put{Key: "/elsewhere" + key, Value: []byte("1")})
			s := c.Watch(t.Context(), WatchOptions{Key: key, After: first.Revision})
			again := time.NewTicker(progressInterval)
			defer again.Stop()
			for deadline := time.After(10 * time.Second); ; {
				select {
				case resp := <-s.C():
					b, err := s.Accept(resp)
					if err != nil {
						t.Fatal(err)
					}
					if b.Progress && b.Revision >= present.Revision {
						return
					}
				case <-again.C:
					if err := c.RequestProgress(t.Context()); err != nil {
						t.Fatal(err)
					}
				case <-deadline:
					t.Fatal("no progress in 10 s")
				}
			}
		})
	}
}

func TestAnotherConnection(t *testing.T) {
	server := etcdtest.Start(t)
	c := New(server.Dial(t))
	first := mustPut(t, c, Put{Key: "/a", Value: []byte("1")})
	s := c.Watch(t.Context(), WatchOptions{Key: "/a", After: first.Revision})
	for s.acknowledged == 0 {
		if _, err := s.Accept(<-s.C()); err != nil {
			t.Fatal(err)
		}
	}
	server.Restart(t)
	mustPut(t, New(server.Dial(t)), Put{Key: "/a", Value: []byte("2"), Expected: first.Revision})
	select {
	case resp := <-s.C():
		if _, err := s.Accept(resp); !errors.Is(err, ErrReconnected) {
			t.Fatalf("after a restart of etcd: %v", err)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("nothing in 20 s")
	}
	s = c.Watch(t.Context(), WatchOptions{Key: "/a", After: first.Revision})
	if b := next(t, s); len(b.Events) != 1 || string(b.Events[0].Value) != "2" {
		t.Errorf("another watch: %+v", b)
	}
}
