package core

import (
	"net/http"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"triune.dev/shared/server/advertise"
)

func serviceAccount(name string) *corev1.ServiceAccount {
	return &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}
}

// testBootstrapObjects checks the first objects of a cluster. The Service kubernetes is
// created after readyz is green, for which its controller waits.
func (c *cluster) testBootstrapObjects(t *testing.T) {
	ctx, o := t.Context(), metav1.GetOptions{}
	await(t, "the endpoint of an aggregator", func() bool {
		const endpoint = `{"address":"192.0.2.7","port":6443}`
		return c.client.CoreV1().RESTClient().Put().AbsPath(advertise.Path).SetHeader("Content-Type", "application/json").Body([]byte(endpoint)).Do(ctx).Error() == nil
	})
	await(t, "the Service kubernetes and its endpoint", func() bool {
		service, err := c.client.CoreV1().Services("default").Get(ctx, "kubernetes", o)
		if err != nil {
			return false
		}
		if service.Spec.ClusterIP != "10.0.0.1" {
			t.Fatalf("cluster IP %s", service.Spec.ClusterIP)
		}
		slice, err := c.client.DiscoveryV1().EndpointSlices("default").Get(ctx, "kubernetes", o)
		return err == nil && len(slice.Endpoints) == 1 && slice.Endpoints[0].Addresses[0] == "192.0.2.7"
	})
	wanted := map[string]func() error{
		"cluster role": func() error { _, err := c.client.RbacV1().ClusterRoles().Get(ctx, "cluster-admin", o); return err },
		"role": func() error {
			_, err := c.client.RbacV1().Roles("kube-system").Get(ctx, "extension-apiserver-authentication-reader", o)
			return err
		},
		"priority class": func() error {
			_, err := c.client.SchedulingV1().PriorityClasses().Get(ctx, "system-node-critical", o)
			return err
		},
		"flow schema": func() error { _, err := c.client.FlowcontrolV1().FlowSchemas().Get(ctx, "exempt", o); return err },
		"priority level": func() error {
			_, err := c.client.FlowcontrolV1().PriorityLevelConfigurations().Get(ctx, "catch-all", o)
			return err
		},
		"service CIDR":    func() error { _, err := c.client.NetworkingV1().ServiceCIDRs().Get(ctx, "kubernetes", o); return err },
		"IP of a Service": func() error { _, err := c.client.NetworkingV1().IPAddresses().Get(ctx, "10.0.0.1", o); return err },
		"trust of extension servers": func() error {
			trust, err := c.client.CoreV1().ConfigMaps("kube-system").Get(ctx, "extension-apiserver-authentication", o)
			if err == nil && !strings.Contains(trust.Data["client-ca-file"], "BEGIN CERTIFICATE") {
				t.Errorf("no client CA in %v", trust.Data)
			}
			return err
		},
		"identity lease": func() error {
			leases, err := c.client.CoordinationV1().Leases("kube-system").List(ctx, metav1.ListOptions{LabelSelector: "apiserver.kubernetes.io/identity=kube-apiserver"})
			if err == nil && len(leases.Items) != 1 {
				return apierrors.NewNotFound(corev1.Resource("leases"), "identity")
			}
			return err
		},
	}
	for name, exists := range wanted {
		await(t, name, func() bool {
			err := exists()
			if err != nil && !apierrors.IsNotFound(err) {
				t.Fatalf("%s: %v", name, err)
			}
			return err == nil
		})
	}
	if code, _, body := c.get(t, "/livez?verbose"); code != http.StatusOK || !strings.Contains(body, "poststarthook/rbac/bootstrap-roles ok") {
		t.Errorf("livez: %d %s", code, body)
	}
}
