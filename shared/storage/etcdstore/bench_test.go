package etcdstore

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"

	"triune.dev/shared/testing/etcdtest"
)

// Run with
//
//	go test -run '^$' -bench . -benchmem ./shared/storage/etcdstore
//
// etcd runs in the process of the benchmark, so the figures include its work.

// transports runs a benchmark with etcd called in process, and over gRPC on loopback.
func transports(b *testing.B, run func(b *testing.B, f *fixture), change ...func(testing.TB) func(*Config)) {
	server := etcdtest.Start(b)
	for _, transport := range []struct {
		name string
		etcd *clientv3.Client
	}{{"in-process", server.InProcess()}, {"gRPC", server.Dial(b)}} {
		b.Run(transport.name, func(b *testing.B) {
			changes := []func(*Config){func(c *Config) { c.Prefix = "/" + b.Name() }}
			for _, of := range change {
				changes = append(changes, of(b))
			}
			f := &fixture{t: b, server: server, etcd: transport.etcd, Store: newStore(b, transport.etcd, changes...)}
			b.ReportAllocs()
			run(b, f)
		})
	}
}

// fill stores pods of about a kilobyte; every tenth is labelled rare.
func fill(b *testing.B, f *fixture, pods int) {
	b.Helper()
	for i := range pods {
		f.create(b, podNamed(fmt.Sprintf("p%05d", i), label("big", strings.Repeat("x", 1000)), label("rare", strconv.FormatBool(i%10 == 0))))
	}
}

func BenchmarkGet(b *testing.B) {
	for _, version := range []string{"", "0"} {
		b.Run("resourceVersion="+version, func(b *testing.B) {
			transports(b, func(b *testing.B, f *fixture) {
				fill(b, f, 1)
				for b.Loop() {
					if err := f.Get(b.Context(), podKey("p00000"), storage.GetOptions{ResourceVersion: version}, &example.Pod{}); err != nil {
						b.Fatal(err)
					}
				}
			})
		})
	}
}

func BenchmarkList(b *testing.B) {
	const pods = 1000
	limited := storage.Everything
	limited.Limit = 100
	for _, tc := range []struct {
		name      string
		predicate storage.SelectionPredicate
		want      int
	}{
		{"all-1000", storage.Everything, pods},
		{"limit-100", limited, 100},
		{"selector-100-of-1000", selecting(b, "rare=true"), 100},
	} {
		b.Run(tc.name, func(b *testing.B) {
			transports(b, func(b *testing.B, f *fixture) {
				fill(b, f, pods)
				for b.Loop() {
					list := &example.PodList{}
					if err := f.GetList(b.Context(), "/pods", storage.ListOptions{Recursive: true, Predicate: tc.predicate}, list); err != nil || len(list.Items) != tc.want {
						b.Fatalf("%d pods, want %d: %v", len(list.Items), tc.want, err)
					}
				}
			})
		})
	}
}

func BenchmarkUpdate(b *testing.B) {
	for _, suggested := range []bool{false, true} {
		b.Run(fmt.Sprintf("suggested=%t", suggested), func(b *testing.B) {
			transports(b, func(b *testing.B, f *fixture) {
				fill(b, f, 1)
				last := &example.Pod{}
				if err := f.Get(b.Context(), podKey("p00000"), storage.GetOptions{}, last); err != nil {
					b.Fatal(err)
				}
				n := 0
				for b.Loop() {
					var suggestion runtime.Object
					if suggested {
						suggestion = last
					}
					n++
					out := &example.Pod{}
					err := f.GuaranteedUpdate(b.Context(), podKey("p00000"), out, false, nil, func(obj runtime.Object, _ storage.ResponseMeta) (runtime.Object, *uint64, error) {
						pod := obj.(*example.Pod)
						pod.Labels["n"] = strconv.Itoa(n)
						return pod, nil, nil
					}, suggestion)
					if err != nil {
						b.Fatal(err)
					}
					last = out
				}
			})
		})
	}
}

func BenchmarkCreateDelete(b *testing.B) {
	transports(b, func(b *testing.B, f *fixture) {
		pod := podNamed("a", label("big", strings.Repeat("x", 1000)))
		for b.Loop() {
			created := f.create(b, pod.DeepCopy())
			err := f.Delete(b.Context(), podKey("a"), &example.Pod{}, nil, storage.ValidateAllObjectFunc, created, storage.DeleteOptions{})
			if err != nil {
				b.Fatal(err)
			}
		}
	})
}

// BenchmarkWatch measures an update and its delivery to a number of watchers.
func BenchmarkWatch(b *testing.B) {
	for _, watchers := range []int{1, 100} {
		b.Run(fmt.Sprintf("watchers=%d", watchers), func(b *testing.B) {
			transports(b, func(b *testing.B, f *fixture) {
				fill(b, f, 1)
				rev, err := f.currentRevision(b.Context())
				if err != nil {
					b.Fatal(err)
				}
				from := storage.ListOptions{ResourceVersion: strconv.FormatInt(rev, 10)}
				channels := make([]<-chan struct{}, watchers)
				for i := range channels {
					w := f.watch(b, b.Context(), from)
					got := make(chan struct{}, 1)
					go func() {
						defer close(got)
						for range w.ResultChan() {
							got <- struct{}{}
						}
					}()
					channels[i] = got
				}
				n := 0
				for b.Loop() {
					n++
					f.update(b, "p00000", label("n", strconv.Itoa(n)))
					for _, c := range channels {
						<-c
					}
				}
			}, withCache)
		})
	}
}

// BenchmarkWatchOpen opens a watch, receives the one object there is, and ends it.
func BenchmarkWatchOpen(b *testing.B) {
	transports(b, func(b *testing.B, f *fixture) {
		fill(b, f, 1)
		for b.Loop() {
			w := f.watch(b, b.Context(), storage.ListOptions{})
			receive(b, w)
			w.Stop()
			for range w.ResultChan() {
			}
		}
	}, withCache)
}
