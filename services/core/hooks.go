package core

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/features"
	peerreconcilers "k8s.io/apiserver/pkg/reconcilers"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	apistorage "k8s.io/apiserver/pkg/storage"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/component-helpers/apimachinery/lease"
	"k8s.io/kubernetes/pkg/controlplane"
	"k8s.io/kubernetes/pkg/controlplane/controller/apiserverleasegc"
	"k8s.io/kubernetes/pkg/controlplane/controller/clusterauthenticationtrust"
	"k8s.io/kubernetes/pkg/controlplane/controller/defaultservicecidr"
	"k8s.io/kubernetes/pkg/controlplane/controller/kubernetesservice"
	"k8s.io/kubernetes/pkg/controlplane/controller/leaderelection"
	"k8s.io/kubernetes/pkg/controlplane/controller/legacytokentracking"
	"k8s.io/kubernetes/pkg/controlplane/controller/systemnamespaces"
	"k8s.io/kubernetes/pkg/controlplane/reconcilers"
	kubefeatures "k8s.io/kubernetes/pkg/features"
	"k8s.io/utils/clock"
)

const (
	// identityComponent is the component label of identity leases. It is that of
	// kube-apiserver, so that clients which look for API servers find Triune.
	identityComponent = "kube-apiserver"
	identityDuration  = time.Hour
	identityRenewal   = 10 * time.Second
	// peerEndpointRenewal is how often the lease with this server's address is renewed.
	peerEndpointRenewal = 10 * time.Second
	// candidateCollection is how often expired LeaseCandidates are deleted.
	candidateCollection = 30 * time.Minute
	// bootstrapPoll is how often a hook checks whether an object exists.
	bootstrapPoll = 20 * time.Millisecond
)

// hook is a post-start hook with its name. Hooks that kube-apiserver has, too, have its
// names.
type hook struct {
	name string
	run  func(ctx context.Context) error
}

// addHooks adds the post-start hooks.
func (s *Server) addHooks(c *Config, completed controlplane.CompletedConfig, client *kubernetes.Clientset) error {
	hooks := []hook{
		{"start-system-namespaces-controller", s.systemNamespaces(c, client)},
		{"start-cluster-authentication-info-controller", s.authenticationInfo(c, client)},
		{"start-legacy-token-tracking-controller", s.withSystemNamespace(c, func(ctx context.Context) error {
			go legacytokentracking.NewController(client).RunWithContext(ctx)
			return nil
		})},
	}
	kubernetesService, err := s.kubernetesService(c, completed, client)
	if err != nil {
		return err
	}
	hooks = append(hooks, kubernetesService)
	peerAddress := ""
	if utilfeature.DefaultFeatureGate.Enabled(features.UnknownVersionInteroperabilityProxy) {
		if peerAddress, err = peerAddressOf(c); err != nil {
			return err
		}
		hooks = append(hooks, s.peerEndpoint(c, peerAddress, client))
	}
	if utilfeature.DefaultFeatureGate.Enabled(kubefeatures.MultiCIDRServiceAllocator) {
		hooks = append(hooks, hook{"start-kubernetes-service-cidr-controller", func(ctx context.Context) error {
			ranges := []net.IPNet{completed.Extra.ServiceIPRange, completed.Extra.SecondaryServiceIPRange}
			if err := createServiceCIDR(ctx, client, ranges); err != nil || ctx.Err() != nil {
				return err
			}
			defaultservicecidr.NewController(ranges[0], ranges[1], client).Start(ctx)
			return nil
		}})
	}
	if utilfeature.DefaultFeatureGate.Enabled(features.CoordinatedLeaderElection) {
		hooks = append(hooks, coordinatedLeaders(c, client))
	}
	if utilfeature.DefaultFeatureGate.Enabled(features.APIServerIdentity) {
		hooks = append(hooks, s.identityLease(c, peerAddress, client)...)
	}
	var errs []error
	for _, hook := range hooks {
		errs = append(errs, s.AddPostStartHook(hook.name, func(ctx genericapiserver.PostStartHookContext) error {
			return hook.run(ctx)
		}))
	}
	errs = append(errs, s.AddPostStartHook(c.admission.HookName, c.admission.Hook))
	for name, run := range c.storage.Hooks() {
		errs = append(errs, s.AddPostStartHook(name, run))
	}
	return errors.Join(errs...)
}

// createServiceCIDR creates the default ServiceCIDR. Its controller also would, but then
// checks it at once: if its informer has no event yet, it tries to create it again,
// mistakes the conflict for an object without ranges, and logs a warning.
func createServiceCIDR(ctx context.Context, client kubernetes.Interface, ranges []net.IPNet) error {
	cidr := &networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: defaultservicecidr.DefaultServiceCIDRName}}
	for _, r := range ranges {
		if r.IP != nil {
			cidr.Spec.CIDRs = append(cidr.Spec.CIDRs, r.String())
		}
	}
	return poll(ctx, func() bool {
		_, err := client.NetworkingV1().ServiceCIDRs().Create(ctx, cidr, metav1.CreateOptions{})
		return err == nil || apierrors.IsAlreadyExists(err)
	})
}

// systemNamespaces returns a hook that creates the system namespaces and returns when they
// exist, so that clients may create objects in default as soon as readyz is green. The
// readyz of kube-apiserver does not wait for them.
func (s *Server) systemNamespaces(c *Config, client *kubernetes.Clientset) func(context.Context) error {
	namespaces := c.Informers.Core().V1().Namespaces()
	lister, names := namespaces.Lister(), c.controlPlane.ControlPlane.SystemNamespaces
	controller := systemnamespaces.NewController(names, client, namespaces)
	return func(ctx context.Context) error {
		go controller.Run(ctx.Done())
		return poll(ctx, func() bool { return namespacesExist(lister, names) })
	}
}

// withSystemNamespace returns a hook that runs run when kube-system exists. In a new cluster
// run would otherwise fail first, and wait before it tries again.
func (s *Server) withSystemNamespace(c *Config, run func(context.Context) error) func(context.Context) error {
	lister := c.Informers.Core().V1().Namespaces().Lister()
	return func(ctx context.Context) error {
		err := poll(ctx, func() bool { return namespacesExist(lister, []string{metav1.NamespaceSystem}) })
		if err != nil || ctx.Err() != nil {
			return err
		}
		return run(ctx)
	}
}

func namespacesExist(lister corelisters.NamespaceLister, names []string) bool {
	for _, name := range names {
		if _, err := lister.Get(name); err != nil {
			return false
		}
	}
	return true
}

// kubernetesService returns a hook that maintains the Service default/kubernetes and its
// endpoints. The hook cannot wait for them, since the controller publishes an endpoint only
// when readyz is green.
func (s *Server) kubernetesService(c *Config, completed controlplane.CompletedConfig, client *kubernetes.Clientset) (hook, error) {
	_, port, err := c.Generic.SecureServing.HostPort()
	if err != nil {
		return hook{}, fmt.Errorf("listener address: %w", err)
	}
	reconciler := completed.Extra.EndpointReconcilerConfig.Reconciler
	if c.environment.Head == nil {
		reconciler = &withoutOwnEndpoint{EndpointReconciler: reconciler} // clients connect to aggregators
	}
	controller := kubernetesservice.New(kubernetesservice.Config{
		PublicIP:                  c.Generic.PublicAddress,
		EndpointReconciler:        reconciler,
		EndpointInterval:          completed.Extra.EndpointReconcilerConfig.Interval,
		ServiceIP:                 completed.Extra.APIServerServiceIP,
		ServicePort:               completed.Extra.APIServerServicePort,
		PublicServicePort:         port,
		KubernetesServiceNodePort: completed.Extra.KubernetesServiceNodePort,
	}, client, c.Informers.Core().V1().Services())
	s.AddPreShutdownHook("stop-kubernetes-service-controller", func() error {
		controller.Stop()
		return nil
	})
	return hook{"bootstrap-controller", func(ctx context.Context) error {
		controller.Start(ctx.Done())
		return nil
	}}, nil
}

// withoutOwnEndpoint is a reconciler that ignores the endpoint of this server. Package advertise
// maintains those of others.
type withoutOwnEndpoint struct {
	reconcilers.EndpointReconciler
	stopped atomic.Bool
}

// ReconcileEndpoints implements reconcilers.EndpointReconciler.
func (*withoutOwnEndpoint) ReconcileEndpoints(string, net.IP, []corev1.EndpointPort, bool) error {
	return nil
}

// RemoveEndpoints implements reconcilers.EndpointReconciler. At the start, upstream's controller
// expects that there is no endpoint to remove, and at the end that there is one.
func (r *withoutOwnEndpoint) RemoveEndpoints(string, net.IP, []corev1.EndpointPort) error {
	if r.stopped.Load() {
		return nil
	}
	return apistorage.NewKeyNotFoundError("", 0)
}

// StopReconciling implements reconcilers.EndpointReconciler.
func (r *withoutOwnEndpoint) StopReconciling() {
	r.stopped.Store(true)
	r.EndpointReconciler.StopReconciling()
}

// poll waits until done returns true or ctx ends. It returns nil in both cases.
func poll(ctx context.Context, done func() bool) error {
	err := wait.PollUntilContextCancel(ctx, bootstrapPoll, true, func(context.Context) (bool, error) { return done(), nil })
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// authenticationInfo returns a hook that publishes the client CA and the front-proxy CA for
// extension API servers, and updates them when their files change.
func (s *Server) authenticationInfo(c *Config, client *kubernetes.Clientset) func(context.Context) error {
	trust := c.controlPlane.ControlPlane.ClusterAuthenticationInfo
	return func(ctx context.Context) error {
		controller := clusterauthenticationtrust.NewClusterAuthenticationTrustController(trust, client)
		for _, provider := range []dynamiccertificates.CAContentProvider{trust.ClientCA, trust.RequestHeaderCA} {
			if provider == nil {
				continue
			}
			provider.AddListener(controller)
			if runner, ok := provider.(dynamiccertificates.ControllerRunner); ok {
				if err := runner.RunOnce(ctx); err != nil {
					return fmt.Errorf("read CA bundle: %w", err)
				}
				go runner.Run(ctx, 1)
			}
		}
		go controller.Run(ctx, 1)
		return nil
	}
}

// peerAddressOf returns the address at which other API servers of the cluster reach this one
// (KEP-4020).
func peerAddressOf(c *Config) (string, error) {
	if given := c.options.PeerAdvertiseAddress; given.PeerAdvertiseIP != "" && given.PeerAdvertisePort != "" {
		return net.JoinHostPort(given.PeerAdvertiseIP, given.PeerAdvertisePort), nil
	}
	_, port, err := c.Generic.SecureServing.HostPort()
	if err != nil {
		return "", fmt.Errorf("listener address: %w", err)
	}
	return net.JoinHostPort(c.Generic.PublicAddress.String(), strconv.Itoa(port)), nil
}

// peerEndpoint returns a hook that maintains the lease with the address of this server, so
// that a kube-apiserver of another version passes on what only this server serves.
func (s *Server) peerEndpoint(c *Config, address string, client *kubernetes.Clientset) hook {
	const name = "peer-endpoint-reconciler-controller"
	controller := peerreconcilers.New(c.Generic.APIServerID, address,
		c.controlPlane.ControlPlane.PeerEndpointLeaseReconciler, peerEndpointRenewal, client)
	s.AddPreShutdownHook(name, func() error {
		controller.Stop()
		return nil
	})
	return hook{name, func(ctx context.Context) error {
		controller.Start(ctx.Done())
		return nil
	}}
}

// identityLease returns hooks that maintain the lease of this server (KEP-1965) and delete
// expired leases of other servers.
func (s *Server) identityLease(c *Config, peerAddress string, client *kubernetes.Clientset) []hook {
	id := c.Generic.APIServerID
	controller := lease.NewController(clock.RealClock{}, client, id+"_"+uuid.NewString(),
		int32(identityDuration/time.Second), nil, identityRenewal, id, metav1.NamespaceSystem, describeIdentity(peerAddress))
	s.AddPreShutdownHook("stop-kube-apiserver-identity-lease-controller", func() error {
		controller.Stop()
		return nil
	})
	return []hook{
		{"start-kube-apiserver-identity-lease-controller", s.withSystemNamespace(c, func(ctx context.Context) error {
			return controller.Start(ctx.Done())
		})},
		{"start-kube-apiserver-identity-lease-garbage-collector", func(ctx context.Context) error {
			collector := apiserverleasegc.NewAPIServerLeaseGC(client, identityDuration, metav1.NamespaceSystem,
				controlplane.IdentityLeaseComponentLabelKey+"="+identityComponent)
			go collector.RunWithContext(ctx)
			return nil
		}},
	}
}

// coordinatedLeaders returns a hook that elects the leaders of components with
// LeaseCandidates (KEP-4355).
func coordinatedLeaders(c *Config, client *kubernetes.Clientset) hook {
	leases := c.Informers.Coordination().V1().Leases()
	candidates := c.Informers.Coordination().V1beta1().LeaseCandidates()
	// Register the informers now: they are started before this server is elected.
	leases.Informer()
	candidates.Informer()
	elect := func() (func(ctx context.Context, workers int), error) {
		controller, err := leaderelection.NewController(leases, candidates, client.CoordinationV1(), client.CoordinationV1beta1())
		if err != nil {
			return nil, err
		}
		collector := leaderelection.NewLeaseCandidateGC(client, candidateCollection, candidates)
		return func(ctx context.Context, workers int) {
			go controller.Run(ctx, workers)
			go collector.Run(ctx)
		}, nil
	}
	timers := leaderelection.LeaderElectionTimers{
		LeaseDuration: c.options.CoordinatedLeadershipLeaseDuration,
		RenewDeadline: c.options.CoordinatedLeadershipRenewDeadline,
		RetryPeriod:   c.options.CoordinatedLeadershipRetryPeriod,
	}
	return hook{"start-kube-apiserver-coordinated-leader-election-controller", func(ctx context.Context) error {
		go leaderelection.RunWithLeaderElection(ctx, c.Generic.LoopbackClientConfig, elect, timers)
		return nil
	}}
}

// describeIdentity returns a function that adds the labels of an identity lease and, unless it
// is empty, the address for other API servers.
func describeIdentity(peerAddress string) lease.ProcessLeaseFunc {
	return func(lease *coordinationv1.Lease) error {
		hostname, err := os.Hostname()
		if err != nil {
			return err
		}
		metav1.SetMetaDataLabel(&lease.ObjectMeta, controlplane.IdentityLeaseComponentLabelKey, identityComponent)
		metav1.SetMetaDataLabel(&lease.ObjectMeta, corev1.LabelHostname, hostname)
		if peerAddress != "" {
			metav1.SetMetaDataAnnotation(&lease.ObjectMeta, corev1.AnnotationPeerAdvertiseAddress, peerAddress)
		}
		return nil
	}
}
