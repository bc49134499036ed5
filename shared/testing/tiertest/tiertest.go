// Package tiertest runs a tier inside a test of its service: [NewConfig] and [NewStorage]
// return what every tier is made of, [Run] runs it until the test ends, and [Eventually] waits
// for what it does in the background.
package tiertest

import (
	"context"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/registry/generic"
	genericapiserver "k8s.io/apiserver/pkg/server"
	genericfilters "k8s.io/apiserver/pkg/server/filters"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/util/compatibility"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/kube-openapi/pkg/common"

	"triune.dev/shared/storage"
)

// Patience bounds every wait of a test. No test waits for it to pass.
const Patience = 20 * time.Second

// NewConfig returns a configuration without authentication and authorization.
func NewConfig(codecs serializer.CodecFactory) *genericapiserver.Config {
	g := genericapiserver.NewConfig(codecs)
	g.FeatureGate = utilfeature.DefaultFeatureGate
	g.EffectiveVersion = compatibility.DefaultBuildEffectiveVersion()
	g.ExternalAddress = "127.0.0.1:443"
	g.LongRunningFunc = genericfilters.BasicLongRunningRequestCheck(
		sets.NewString("watch", "proxy"), sets.NewString("attach", "exec", "proxy", "log", "portforward"))
	g.OpenAPIConfig = &common.Config{}
	return g
}

// NewStorage opens the storage of a tier, as its command does, until the test ends.
func NewStorage(t testing.TB, etcd *clientv3.Client, g *genericapiserver.Config) generic.RESTOptionsGetter {
	t.Helper()
	options := genericoptions.NewEtcdOptions(storagebackend.NewDefaultConfig("/registry", nil))
	store, err := storage.Open(t.Context(), storage.Config{Generic: g, Etcd: options, Client: etcd})
	if err != nil {
		t.Fatalf("open the storage: %v", err)
	}
	t.Cleanup(store.Close)
	Run(t, store.Run)
	return store.RESTOptions()
}

// Run calls run in the background until the test ends. The test fails if run returns an error,
// or does not return when its context is done.
func Run(t testing.TB, run func(context.Context) error) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- run(ctx) }()
	t.Cleanup(func() {
		cancel()
		select {
		case err := <-ended:
			if err != nil {
				t.Errorf("run: %v", err)
			}
		case <-time.After(Patience):
			t.Error("run does not return")
		}
	})
}

// Eventually waits until done returns true. A failure shows the last message of done.
func Eventually(t testing.TB, what string, done func() (ok bool, message string)) {
	t.Helper()
	var last string
	err := wait.PollUntilContextTimeout(t.Context(), 5*time.Millisecond, Patience, true, func(context.Context) (ok bool, err error) {
		ok, last = done()
		return ok, nil
	})
	if err != nil {
		t.Fatalf("%s: not after %s: %s", what, Patience, last)
	}
}
