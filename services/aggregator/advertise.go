package aggregator

import (
	"context"
	"fmt"
	"sync"

	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/klog/v2"
	apiregistrationclient "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset"

	"triune.dev/shared/program/options"
	"triune.dev/shared/server/advertise"
)

// advertise adds the hooks that advertise the address of this server to core. port is that of
// the listener if it is 0. An address that Pods cannot reach, as on a machine without a
// network, is not advertised.
func (s *Server) advertise(config *options.Config, port int) error {
	if port == 0 {
		_, listened, err := config.Generic.SecureServing.HostPort()
		if err != nil {
			return fmt.Errorf("listener address: %w", err)
		}
		port = listened
	}
	own, err := apiregistrationclient.NewForConfig(s.server.LoopbackClientConfig())
	if err != nil {
		return err
	}
	core := config.Client.Discovery().RESTClient()
	advertiser, err := advertise.New(advertise.Config{
		Endpoint: advertise.Endpoint{Address: config.Generic.PublicAddress, Port: int32(port)},
		Ready: func(ctx context.Context) error {
			return own.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
		},
		Send: func(ctx context.Context, method string, body []byte) error {
			return core.Verb(method).AbsPath(advertise.Path).SetHeader("Content-Type", "application/json").Body(body).Do(ctx).Error()
		},
	})
	if err != nil {
		klog.InfoS("the address of this server is not advertised", "flag", "--advertise-address", "reason", err.Error())
		return nil
	}
	advertising, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	s.server.AddPreShutdownHook("triune-advertise", func() error {
		stop()
		running.Wait()
		if err := advertiser.Withdraw(); err != nil {
			// The lease of the address expires by itself. Core also keeps the last address.
			klog.InfoS("the address of this server is not withdrawn", "reason", err.Error())
		}
		return nil
	})
	return s.server.AddPostStartHook("triune-advertise", func(hook genericapiserver.PostStartHookContext) error {
		context.AfterFunc(hook, stop)
		running.Go(func() { advertiser.Run(klog.NewContext(advertising, klog.FromContext(hook))) })
		return nil
	})
}
