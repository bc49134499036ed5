package core

import (
	"context"
	"net/http"
	"strings"
	"time"

	"github.com/google/uuid"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"triune.dev/shared/transport/loopback"
)

// addLoopback makes the configuration of clients of core itself. They call the handler
// without a socket, so they work before the server listens, and only this process knows
// their token.
func (c *Config) addLoopback(context.Context) error {
	handler := c.environment.Head
	if handler == nil {
		handler = c.handler
	}
	own := loopback.Config(handler, uuid.NewString())
	own.ContentConfig.ContentType = "application/vnd.kubernetes.protobuf"
	own.UserAgent = userAgent()
	// Admission plugins send requests as soon as they are made, and would log errors about a
	// server that does not run yet.
	own.Wrap(loopback.Delay(c.running, startLimit))
	c.Generic.LoopbackClientConfig = own
	client, err := kubernetes.NewForConfig(own)
	if err != nil {
		return err
	}
	c.Informers = informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithTransform(trim))
	return nil
}

// userAgent returns that of kube-apiserver, whatever the name of this program. Its first
// part is the field manager of the server's own writes. During a shutdown, filters do not
// refuse requests with this name, since requests in flight need them.
func userAgent() string {
	_, version, _ := strings.Cut(rest.DefaultKubernetesUserAgent(), "/")
	return "kube-apiserver/" + version
}

// startLimit bounds the time that a request of core to itself waits for the server to run.
const startLimit = 30 * time.Second

// handler returns the handler of the server that New has made, nil before.
func (c *Config) handler() http.Handler {
	if server := c.server.Load(); server != nil {
		return server.Handler()
	}
	return nil
}
