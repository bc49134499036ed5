package identity

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sync/errgroup"

	"triune.dev/shared/process/pki"
	"triune.dev/tests/cluster"
	"triune.dev/tests/tokens"
)

var target, replicas = cluster.SuiteFlags(cluster.ToCompare, 1)

// site is the environment of the servers of this run.
var site struct {
	// dir has the configuration files of all servers.
	dir string
	pki *pki.PKI
	// one and two are issuers of the AuthenticationConfiguration.
	one, two *tokens.Issuer
	webhooks *webhooks

	reference, tested *server
}

// servers returns the reference and the servers under test.
func servers() []*server { return []*server{site.reference, site.tested} }

func TestMain(m *testing.M) {
	cluster.Main(m, func(ctx context.Context) (int, error) { return run(ctx, m) })
}

func run(ctx context.Context, m *testing.M) (code int, err error) {
	if site.dir, err = os.MkdirTemp("", "triune-identity-"); err != nil {
		return 1, err
	}
	defer os.RemoveAll(site.dir)
	if err := startPeers(); err != nil {
		return 1, err
	}
	var starting errgroup.Group
	for _, s := range []struct {
		topology cluster.Topology
		into     **server
	}{
		{cluster.KubeAPIServer, &site.reference},
		{cluster.Topology(*target), &site.tested},
	} {
		starting.Go(func() error {
			c, err := cluster.Start(ctx, configured(s.topology))
			if err != nil {
				return err
			}
			*s.into, err = newServer(c)
			return err
		})
	}
	err = starting.Wait()
	if err == nil {
		code = m.Run()
	}
	for _, s := range servers() {
		if s != nil {
			err = errors.Join(err, s.cluster.Discard(code != 0))
		}
	}
	return code, err
}

// startPeers starts the issuers, webhooks and other peers of the servers, and writes the
// configuration files.
func startPeers() (err error) {
	if site.pki, err = pki.Ensure(file("pki"), pki.Options{Clients: []pki.Client{
		{Name: "portal", CommonName: "portal", Authority: pki.FrontProxyCA},
		{Name: "gate", CommonName: "gate", Authority: pki.FrontProxyCA},
		{Name: "mallory", CommonName: "mallory", Organizations: []string{"system:masters"}, Authority: pki.EtcdCA},
	}}); err != nil {
		return err
	}
	if site.one, err = tokens.NewIssuer(); err != nil {
		return err
	}
	if site.two, err = tokens.NewIssuer(); err != nil {
		return err
	}
	site.webhooks = newWebhooks()
	clients, err := os.ReadFile(site.pki.ClusterCA.CertFile)
	if err != nil {
		return err
	}
	for name, content := range map[string]string{
		"clients.crt":               string(clients),
		"authentication.yaml":       authentication(issuers()...),
		"authorization.yaml":        authorization(webhookAuthorizer("Deny")),
		"authentication.kubeconfig": site.webhooks.kubeconfig("/authenticate"),
		"authorization.kubeconfig":  site.webhooks.kubeconfig("/authorize"),
	} {
		if err := os.WriteFile(file(name), []byte(content), 0o600); err != nil {
			return err
		}
	}
	return nil
}

func file(name string) string { return filepath.Join(site.dir, name) }

// configured returns the configuration of the servers of a topology.
func configured(topology cluster.Topology) cluster.Config {
	config := cluster.Config{
		Topology: topology, Replicas: *replicas, PKI: site.pki,
		Flags:   map[cluster.Tier][]string{},
		Without: []string{"--authorization-mode"},
	}
	for _, tier := range (&cluster.Cluster{Config: config}).ServingTiers() {
		flags := []string{
			"--authentication-config=" + file("authentication.yaml"),
			"--client-ca-file=" + file("clients.crt"),
			"--requestheader-allowed-names=portal",
			"--requestheader-username-headers=X-Portal-User",
			"--requestheader-group-headers=X-Portal-Group",
			"--requestheader-uid-headers=X-Portal-Uid",
			"--requestheader-extra-headers-prefix=X-Portal-Extra-",
		}
		// The other tiers ask core about these.
		if tier != cluster.Aggregator && tier != cluster.Extensions {
			flags = append(flags,
				"--authentication-token-webhook-config-file="+file("authentication.kubeconfig"),
				"--authentication-token-webhook-version=v1",
				"--authorization-config="+file("authorization.yaml"))
		}
		config.Flags[tier] = flags
	}
	return config
}
