package etcdstore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"
	storagetesting "k8s.io/apiserver/pkg/storage/testing"
	"k8s.io/apiserver/pkg/storage/value"
	"k8s.io/apiserver/pkg/storage/value/encrypt/identity"
)

// outage is a transformer whose keys can be unavailable.
type outage struct {
	value.Transformer
	down atomic.Bool
}

func (o *outage) TransformFromStorage(ctx context.Context, data []byte, dataCtx value.Context) ([]byte, bool, error) {
	if o.down.Load() {
		return nil, false, errors.New("nobody has the key")
	}
	return o.Transformer.TransformFromStorage(ctx, data, dataCtx)
}

// TestListUndecryptable checks that the list fails with an error that names the
// key, instead of containing empty objects, even if unencrypted objects are stored as well.
func TestListUndecryptable(t *testing.T) {
	keys := &outage{Transformer: storagetesting.NewPrefixTransformer(nil, false)}
	f := newFixture(t, func(c *Config) {
		c.Transformer = value.NewPrefixTransformers(nil,
			value.PrefixTransformer{Prefix: []byte("k8s:enc:kms:v2:vault:"), Transformer: keys},
			value.PrefixTransformer{Transformer: identity.NewEncryptCheckTransformer()})
	}, withCache(t))
	list := func() (*example.PodList, error) {
		pods := &example.PodList{}
		err := f.GetList(t.Context(), "/pods", storage.ListOptions{Recursive: true, Predicate: storage.Everything}, pods)
		return pods, err
	}
	for _, count := range []int{1, 2} {
		f.create(t, podNamed(fmt.Sprint("pod-", count)))
		keys.down.Store(true)
		f.reload(t)
		for range 2 { // while it is loaded, then from memory
			if pods, err := list(); !storage.IsInternalError(err) || !strings.Contains(err.Error(), podKey("pod-1")) {
				t.Errorf("%d pods: %v, %v, want an internal error", count, pods.Items, err)
			}
		}
		keys.down.Store(false)
		if pods, err := list(); err != nil || len(pods.Items) != count || pods.Items[0].Name != "pod-1" {
			t.Errorf("%d pods when the keys are back: %v, %v", count, pods.Items, err)
		}
	}
}
