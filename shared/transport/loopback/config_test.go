package loopback_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"triune.dev/shared/transport/loopback"
)

// configMaps serves one list, and one watch that sends what events delivers.
func configMaps(t *testing.T, events <-chan metav1.WatchEvent) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if got := r.Header.Get("Authorization"); got != "Bearer secret" {
			t.Errorf("authorization %q", got)
		}
		if got := r.Header.Get("Accept-Encoding"); strings.Contains(got, "gzip") {
			t.Errorf("compression asked for: %q", got)
		}
		w.Header().Set("Content-Type", "application/json")
		encode := json.NewEncoder(w)
		if r.URL.Query().Get("watch") == "" {
			_ = encode.Encode(corev1.ConfigMapList{
				TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMapList"},
				ListMeta: metav1.ListMeta{ResourceVersion: "1"},
				Items:    []corev1.ConfigMap{{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "listed", ResourceVersion: "1"}}},
			})
			return
		}
		if r.URL.Query().Get("sendInitialEvents") == "true" {
			// The server does not support watch lists, so the reflector lists instead.
			w.WriteHeader(http.StatusUnprocessableEntity)
			_ = encode.Encode(metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: "Failure", Reason: metav1.StatusReasonInvalid, Code: 422})
			return
		}
		w.(http.Flusher).Flush()
		for {
			select {
			case e := <-events:
				_ = encode.Encode(e)
				w.(http.Flusher).Flush()
			case <-r.Context().Done():
				return
			}
		}
	})
}

func TestInformersWorkOverTheConfig(t *testing.T) {
	events := make(chan metav1.WatchEvent)
	handler := configMaps(t, events)
	client, err := kubernetes.NewForConfig(loopback.Config(func() http.Handler { return handler }, "secret"))
	if err != nil {
		t.Fatal(err)
	}
	factory := informers.NewSharedInformerFactory(client, 0)
	seen := make(chan string, 10)
	informer := factory.Core().V1().ConfigMaps().Informer()
	if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { seen <- "add " + o.(*corev1.ConfigMap).Name },
		DeleteFunc: func(o any) { seen <- "delete " + o.(*corev1.ConfigMap).Name },
	}); err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	factory.Start(stop)
	defer factory.Shutdown()
	defer close(stop)

	expect := func(want string) {
		t.Helper()
		select {
		case got := <-seen:
			if got != want {
				t.Errorf("got %q, want %q", got, want)
			}
		case <-time.After(30 * time.Second):
			t.Fatalf("no %q", want)
		}
	}
	object := func(name, version string) (o metav1.WatchEvent) {
		o.Object.Object = &corev1.ConfigMap{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"}, ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: name, ResourceVersion: version}}
		return o
	}
	expect("add listed")
	added := object("watched", "2")
	added.Type = "ADDED"
	events <- added
	expect("add watched")
	deleted := object("listed", "3")
	deleted.Type = "DELETED"
	events <- deleted
	expect("delete listed")
}
