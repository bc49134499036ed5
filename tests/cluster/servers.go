package cluster

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// startEtcd starts an etcd and returns its URL.
func (c *Cluster) startEtcd(ctx context.Context, name Tier) (string, error) {
	client, err := freePort()
	if err != nil {
		return "", err
	}
	peer, err := freePort()
	if err != nil {
		return "", err
	}
	if c.Config.EtcdData != "" {
		if err := os.CopyFS(filepath.Join(c.Dir, string(name)), os.DirFS(c.Config.EtcdData)); err != nil {
			return "", fmt.Errorf("copy etcd: %w", err)
		}
	}
	flags := etcdFlags(filepath.Join(c.Dir, string(name)), client, peer)
	if c.Config.EtcdRoles {
		return c.startSecureEtcd(ctx, name, client, flags)
	}
	p, err := c.newProcess(ctx, string(name), "etcd", false, append(flags, c.Config.Flags[name]...))
	if err != nil {
		return "", err
	}
	url := "http://" + address(client)
	return url, c.add(ctx, name, &replica{Process: p, url: url, ready: probe(c.PKI, url+"/health")})
}

func (c *Cluster) startNATS(ctx context.Context) (url string, err error) {
	port, err := freePort()
	if err != nil {
		return "", err
	}
	config := filepath.Join(c.Dir, "nats.conf")
	if err := os.WriteFile(config, []byte(natsConfig), 0o600); err != nil {
		return "", fmt.Errorf("start nats-server: %w", err)
	}
	p, err := c.newProcess(ctx, "nats-server", "nats-server", false, append(natsFlags(config, c.NATSDir(), port), c.Config.Flags[NATS]...))
	if err != nil {
		return "", err
	}
	url = "nats://" + address(port)
	return url, c.add(ctx, NATS, &replica{Process: p, url: url, ready: dialable(address(port))})
}

// startReference starts kube-apiserver and returns its addresses. startTriune and
// startTiers do the same for theirs.
func (c *Cluster) startReference(ctx context.Context) ([]string, error) {
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	tier := Tier(KubeAPIServer)
	args := append(wholeServerFlags(c.PKI, port, c.EtcdURL, c.Tokens), c.Config.Flags[tier]...)
	p, err := c.newProcess(ctx, "kube-apiserver", "kube-apiserver", false, args)
	if err != nil {
		return nil, err
	}
	url := secureURL(port)
	return []string{address(port)}, c.add(ctx, tier, &replica{Process: p, url: url, ready: probe(c.PKI, url+"/readyz")})
}

func (c *Cluster) startTriune(ctx context.Context) ([]string, error) {
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	natsURL := ""
	if c.Config.ExternalNATS {
		if natsURL, err = c.startNATS(ctx); err != nil {
			return nil, err
		}
	}
	tier := Tier(Triune)
	args := triuneFlags(c.PKI, filepath.Join(c.Dir, "data"), port, c.EtcdURL, natsURL, c.Tokens)
	p, err := c.newProcess(ctx, "triune", "triune", true, append(args, c.Config.Flags[tier]...))
	if err != nil {
		return nil, err
	}
	url := secureURL(port)
	return []string{address(port)}, c.add(ctx, tier, &replica{Process: p, url: url, ready: probe(c.PKI, url+"/readyz")})
}

// startTiers starts the last tier first. Nothing depends on the order, but the logs then
// have no complaints about a missing tier. All ports are chosen before the first start,
// because tiers name each other.
func (c *Cluster) startTiers(ctx context.Context) ([]string, error) {
	natsURL, err := c.startNATS(ctx)
	if err != nil {
		return nil, err
	}
	ports := map[Tier][]int{}
	urls := map[Tier][]string{}
	etcds := map[Tier]string{}
	for _, tier := range []Tier{Extensions, Core, Aggregator} {
		etcds[tier] = c.EtcdURL
		if c.Config.EtcdPerTier {
			url, err := c.startEtcd(ctx, EtcdOf(tier))
			if err != nil {
				return nil, err
			}
			etcds[tier] = url
		}
		for range c.Config.Replicas {
			port, err := freePort()
			if err != nil {
				return nil, err
			}
			ports[tier] = append(ports[tier], port)
			urls[tier] = append(urls[tier], secureURL(port))
		}
	}
	next := map[Tier]Tier{Aggregator: Core, Core: Extensions}
	// Tiers wait in readyz for each other, so start all before waiting for any.
	for _, tier := range []Tier{Extensions, Core, Aggregator} {
		for i, port := range ports[tier] {
			o := tierOptions{
				pki: c.PKI, port: port, tokens: c.Tokens, nextURLs: urls[next[tier]],
				etcdURL: etcds[tier], ownEtcd: c.Config.EtcdPerTier, natsURL: natsURL, advertise: advertise,
			}
			if c.Config.AdvertiseEach {
				o.advertise = Advertised(i)
			}
			if tier != Core {
				o.coreURLs = urls[Core]
			}
			if tier == Aggregator {
				// All endpoints of a Service have the same port.
				o.advertisePort = ports[Aggregator][0]
			}
			name := fmt.Sprintf("%s-%d", tier, i)
			flags := append(tierFlags(tier, o), c.etcdUserFlags(string(tier))...)
			p, err := c.newProcess(ctx, name, string(tier), true, append(flags, c.Config.Flags[tier]...))
			if err != nil {
				return nil, err
			}
			r := &replica{Process: p, url: urls[tier][i]}
			if err := c.add(ctx, tier, r); err != nil {
				return nil, err
			}
			r.ready = probe(c.PKI, r.url+"/readyz")
		}
	}
	for _, tier := range []Tier{Extensions, Core, Aggregator} {
		for _, r := range c.replicas[tier] {
			if err := r.await(ctx, r.exited, r.ready); err != nil {
				return nil, err
			}
		}
	}
	var fronts []string
	for _, url := range urls[Aggregator] {
		fronts = append(fronts, strings.TrimPrefix(url, "https://"))
	}
	return fronts, nil
}
