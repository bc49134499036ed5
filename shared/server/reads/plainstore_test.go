package reads

import (
	"context"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage"
)

type anyStorage struct{ storage.Interface }

type Embeds struct{ *registry.Store }

type EmbedsTwice struct{ *Embeds }

type EmbedsInterface struct{ rest.StandardStorage }

type GetsItself struct{ *registry.Store }

func (GetsItself) Get(context.Context, string, *metav1.GetOptions) (runtime.Object, error) {
	return nil, nil
}

type EmbedsOneThatGetsItself struct{ *GetsItself }

// Only a storage whose reads are those of the store, unchanged, is served from stored
// bytes.
func TestPlainStore(t *testing.T) {
	store := func() *registry.Store {
		return &registry.Store{Storage: registry.DryRunnableStorage{Storage: anyStorage{}}}
	}
	decorated := store()
	decorated.Decorator = func(runtime.Object) {}
	tests := map[string]struct {
		storage rest.Storage
		plain   bool
	}{
		"the store itself":            {store(), true},
		"embedded":                    {&Embeds{store()}, true},
		"embedded twice":              {&EmbedsTwice{&Embeds{store()}}, true},
		"embedded as an interface":    {&EmbedsInterface{&Embeds{store()}}, true},
		"decorated":                   {&Embeds{decorated}, false},
		"own Get":                     {&GetsItself{store()}, false},
		"embeds one with its own Get": {&EmbedsOneThatGetsItself{&GetsItself{store()}}, false},
		"interface over its own Get":  {&EmbedsInterface{&GetsItself{store()}}, false},
		"without storage":             {&Embeds{&registry.Store{}}, false},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			found, plain := plainStore(test.storage)
			if plain != test.plain || plain && found == nil {
				t.Errorf("got %v, %v; want plain %v", found, plain, test.plain)
			}
		})
	}
}
