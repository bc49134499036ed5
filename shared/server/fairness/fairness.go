package fairness

import (
	"errors"
	"fmt"

	genericapiserver "k8s.io/apiserver/pkg/server"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	utilflowcontrol "k8s.io/apiserver/pkg/util/flowcontrol"
	"k8s.io/apiserver/pkg/util/flowcontrol/fairqueuing/eventclock"
	"k8s.io/apiserver/pkg/util/flowcontrol/fairqueuing/queueset"
	"k8s.io/apiserver/pkg/util/flowcontrol/metrics"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	flowcontrolclient "k8s.io/client-go/kubernetes/typed/flowcontrol/v1"
)

// Apply does the work of [genericoptions.FeatureOptions.ApplyTo] with the priority and
// fairness of this package. Without a client or a limit it returns an error.
func Apply(o *genericoptions.FeatureOptions, c *genericapiserver.Config, client kubernetes.Interface, factory informers.SharedInformerFactory) error {
	others := *o
	others.EnablePriorityAndFairness = false
	if err := others.ApplyTo(c, client, factory); err != nil {
		return err
	}
	if !o.EnablePriorityAndFairness {
		return nil
	}
	if client == nil {
		return errors.New("priority and fairness: a client of the core API is required")
	}
	limit := c.MaxRequestsInFlight + c.MaxMutatingRequestsInFlight
	if limit <= 0 {
		return fmt.Errorf("priority and fairness: --max-requests-inflight=%d and --max-mutating-requests-inflight=%d add up to nothing", c.MaxRequestsInFlight, c.MaxMutatingRequestsInFlight)
	}
	c.FlowControl = New(factory, client.FlowcontrolV1(), limit)
	return nil
}

// New does the work of [utilflowcontrol.New] with the queue sets of this package. limit is
// the number of seats that all priority levels share.
func New(factory informers.SharedInformerFactory, client flowcontrolclient.FlowcontrolV1Interface, limit int) utilflowcontrol.Interface {
	clock := eventclock.Real{}
	return utilflowcontrol.NewTestable(utilflowcontrol.TestableConfig{
		Name:                   "Controller",
		Clock:                  clock,
		AsFieldManager:         utilflowcontrol.ConfigConsumerAsFieldManager,
		FoundToDangling:        func(found bool) bool { return !found },
		InformerFactory:        factory,
		FlowcontrolClient:      client,
		ServerConcurrencyLimit: limit,
		ReqsGaugeVec:           metrics.PriorityLevelConcurrencyGaugeVec,
		ExecSeatsGaugeVec:      metrics.PriorityLevelExecutionSeatsGaugeVec,
		QueueSetFactory:        NewQueueSetFactory(queueset.NewQueueSetFactory(clock), clock),
	})
}
