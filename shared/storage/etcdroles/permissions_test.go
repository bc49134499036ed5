package etcdroles

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"triune.dev/shared/storage/eventlog"
	"triune.dev/shared/storage/kv"
	"triune.dev/shared/testing/etcdtest"
)

// prefixes maps prefixes of keys to their tiers: some for each tier, and some that belong to
// none. Those of core are the ranges of Routes, which a test in services/core compares with the
// keys that core stores.
func prefixes() map[string]eventlog.Tier {
	all := map[string]eventlog.Tier{
		"/registry/apiregistration.k8s.io/apiservices/":              eventlog.Aggregator,
		"/registry/apiextensions.k8s.io/customresourcedefinitions/":  eventlog.Extensions,
		"/registry/apiregistration.k8s.io/widgets/":                  eventlog.Extensions,
		"/registry/example.com/widgets/":                             eventlog.Extensions,
		"/registry/secrets.example.com/widgets/":                     eventlog.Extensions,
		"/registry/secretsx.example.com/widgets/":                    eventlog.Extensions,
		"/registry/zz.example.com/widgets/":                          eventlog.Extensions,
		"/registry/0.example.com/widgets/":                           eventlog.Extensions,
		"/elsewhere/":                                                "",
		"/registryx/pods/":                                           "",
		"/triune/eventlog/another/registry/":                         "",
		"/triune/eventlog/triune/another/":                           "",
		"/triune/":                                                   "",
		"/registry/clusterroles/system:node":                         eventlog.Core,
		"/registry/services/specs/default/":                          eventlog.Core,
		"/registry/services/endpoints/default/":                      eventlog.Core,
		"/registry/secrets/kube-system/bootstrap-token-":             eventlog.Core,
		"/registry/apiregistration.k8s.io/apiservices/v1.apps-or-so": eventlog.Aggregator,
	}
	for _, keys := range routes.Ranges(eventlog.Core) {
		all[keys.Key] = eventlog.Core
	}
	return all
}

// ways lists the ways to access the keys that begin with a prefix.
var ways = []struct {
	name   string
	writes bool
	try    func(ctx context.Context, c *clientv3.Client, prefix string) error
}{
	{"get", false, func(ctx context.Context, c *clientv3.Client, prefix string) error {
		_, err := c.Get(ctx, prefix+"x")
		return err
	}},
	{"stale get", false, func(ctx context.Context, c *clientv3.Client, prefix string) error {
		_, err := c.Get(ctx, prefix+"x", clientv3.WithSerializable())
		return err
	}},
	{"get of the past", false, func(ctx context.Context, c *clientv3.Client, prefix string) error {
		_, err := c.Get(ctx, prefix+"x", clientv3.WithRev(2))
		return err
	}},
	{"list", false, func(ctx context.Context, c *clientv3.Client, prefix string) error {
		_, err := c.Get(ctx, prefix, clientv3.WithPrefix())
		return err
	}},
	{"count", false, func(ctx context.Context, c *clientv3.Client, prefix string) error {
		_, err := c.Get(ctx, prefix, clientv3.WithPrefix(), clientv3.WithCountOnly())
		return err
	}},
	{"read in a transaction", false, func(ctx context.Context, c *clientv3.Client, prefix string) error {
		_, err := c.Txn(ctx).Then(clientv3.OpGet(prefix + "x")).Commit()
		return err
	}},
	{"compare", false, func(ctx context.Context, c *clientv3.Client, prefix string) error {
		_, err := c.Txn(ctx).If(clientv3.Compare(clientv3.Value(prefix+"x"), "=", "guess")).Commit()
		return err
	}},
	{"watch", false, func(ctx context.Context, c *clientv3.Client, prefix string) error {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		resp := <-c.Watch(ctx, prefix, clientv3.WithPrefix(), clientv3.WithRev(2), clientv3.WithPrevKV(), clientv3.WithCreatedNotify())
		return resp.Err()
	}},
	{"watch of one key", false, func(ctx context.Context, c *clientv3.Client, prefix string) error {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		resp := <-c.Watch(ctx, prefix+"x", clientv3.WithCreatedNotify())
		return resp.Err()
	}},
	{"put", true, func(ctx context.Context, c *clientv3.Client, prefix string) error {
		_, err := c.Put(ctx, prefix+"x", "forged")
		return err
	}},
	{"conditional put", true, func(ctx context.Context, c *clientv3.Client, prefix string) error {
		_, err := kv.New(c).Put(ctx, kv.Put{Key: prefix + "x", Value: []byte("forged"), Expected: 1, Reread: true})
		return err
	}},
	{"delete", true, func(ctx context.Context, c *clientv3.Client, prefix string) error {
		_, err := c.Delete(ctx, prefix+"x")
		return err
	}},
	{"delete of all", true, func(ctx context.Context, c *clientv3.Client, prefix string) error {
		_, err := c.Delete(ctx, prefix, clientv3.WithPrefix())
		return err
	}},
}

// TestPermissions checks that the keys of other tiers are inaccessible with the certificate
// of a tier, except for those that core reads and publishes.
func TestPermissions(t *testing.T) {
	server, root := secured(t)
	for prefix := range prefixes() {
		for range 2 {
			if _, err := root.Put(t.Context(), prefix+"x", "true"); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, tier := range append([]eventlog.Tier{"somebody"}, eventlog.Tiers...) {
		user := User(routes, tier)
		if tier == "somebody" {
			user = string(tier)
		}
		c := server.DialAs(t, user)
		for prefix, owner := range prefixes() {
			for _, way := range ways {
				allowed := owner == tier || tier == eventlog.Core && owner != "" && !way.writes
				expect(t, fmt.Sprintf("%s: %s of %s, which is of %q", user, way.name, prefix, owner), way.try(t.Context(), c, prefix), allowed)
			}
		}
		for _, own := range []string{routes.StatePrefix(), routes.StatePrefix() + "incarnation/"} {
			for _, way := range ways {
				allowed := tier == eventlog.Core || tier != "somebody" && !way.writes
				expect(t, fmt.Sprintf("%s: %s of %s", user, way.name, own), way.try(t.Context(), c, own), allowed)
			}
		}
		// Access to all keys at once, in every way that etcd offers.
		for name, op := range map[string]clientv3.Op{
			"everything":        clientv3.OpGet("", clientv3.WithPrefix()),
			"everything from":   clientv3.OpGet("\x00", clientv3.WithFromKey()),
			"from the prefix":   clientv3.OpGet("/registry/", clientv3.WithFromKey()),
			"delete everything": clientv3.OpDelete("\x00", clientv3.WithFromKey()),
		} {
			_, err := c.Do(t.Context(), op)
			expect(t, user+": "+name, err, false)
		}
		_, err := c.Get(t.Context(), "/registry/", clientv3.WithPrefix())
		expect(t, user+": the whole prefix", err, tier == eventlog.Core)
		_, err = c.Delete(t.Context(), "/registry/", clientv3.WithPrefix())
		expect(t, user+": delete the whole prefix", err, false)
		for _, keys := range routes.Ranges(tier) {
			_, err := c.Get(t.Context(), keys.Key, clientv3.WithRange(keys.End))
			expect(t, user+": its range from "+keys.Key, err, true)
		}
	}
}

// Requests without keys are reserved for root, except for those that the clients of every tier
// make.
func TestAdministration(t *testing.T) {
	server, _ := secured(t)
	for _, tier := range eventlog.Tiers {
		user := User(routes, tier)
		c := server.DialAs(t, user)
		for what, try := range map[string]func(ctx context.Context) error{
			"compact":           func(ctx context.Context) error { _, err := c.Compact(ctx, 2); return err },
			"list users":        func(ctx context.Context) error { _, err := c.UserList(ctx); return err },
			"become root":       func(ctx context.Context) error { _, err := c.UserGrantRole(ctx, user, Root); return err },
			"take another role": func(ctx context.Context) error { _, err := c.UserGrantRole(ctx, user, "triune-core"); return err },
			"grant itself more": func(ctx context.Context) error {
				_, err := c.RoleGrantPermission(ctx, user, "/", "0", readWrite)
				return err
			},
			"password of root": func(ctx context.Context) error { _, err := c.UserChangePassword(ctx, Root, "x"); return err },
			"turn it off":      func(ctx context.Context) error { _, err := c.AuthDisable(ctx); return err },
			"hash":             func(ctx context.Context) error { _, err := c.HashKV(ctx, server.URL(), 0); return err },
			"defragment":       func(ctx context.Context) error { _, err := c.Defragment(ctx, server.URL()); return err },
			"disarm the alarms": func(ctx context.Context) error {
				_, err := c.AlarmDisarm(ctx, &clientv3.AlarmMember{MemberID: 1, Alarm: 1})
				return err
			},
			"add a member": func(ctx context.Context) error {
				_, err := c.MemberAdd(ctx, []string{"http://127.0.0.1:1"})
				return err
			},
			"move the leader":    func(ctx context.Context) error { _, err := c.MoveLeader(ctx, 1); return err },
			"copy of everything": func(ctx context.Context) error { return snapshot(ctx, c) },
		} {
			expect(t, user+": "+what, try(t.Context()), false)
		}
		_, err := c.Status(t.Context(), server.URL())
		expect(t, user+": size of the database", err, true)
		lease, err := c.Grant(t.Context(), 60)
		expect(t, user+": a lease", err, true)
		_, err = c.Revoke(t.Context(), lease.ID)
		expect(t, user+": the end of its lease", err, true)
	}
	// A tier cannot revoke a lease with a key of another tier.
	core := server.DialAs(t, User(routes, eventlog.Core))
	lease, err := core.Grant(t.Context(), 600)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := core.Put(t.Context(), routes.StatePrefix()+"relay", "a", clientv3.WithLease(lease.ID)); err != nil {
		t.Fatal(err)
	}
	for _, tier := range []eventlog.Tier{eventlog.Aggregator, eventlog.Extensions} {
		c := server.DialAs(t, User(routes, tier))
		_, err := c.Revoke(t.Context(), lease.ID)
		expect(t, User(routes, tier)+": the end of the relay's lease", err, false)
	}
	if _, err := core.KeepAliveOnce(t.Context(), lease.ID); err != nil {
		t.Errorf("the relay keeps its lease: %v", err)
	}
}

func snapshot(ctx context.Context, c *clientv3.Client) error {
	r, err := c.SnapshotWithVersion(ctx)
	if err != nil {
		return err
	}
	defer r.Snapshot.Close()
	_, err = io.ReadAll(r.Snapshot)
	return err
}

func expect(t *testing.T, what string, err error, allowed bool) {
	t.Helper()
	switch {
	case allowed && err != nil:
		t.Errorf("%s: %v", what, err)
	case !allowed && err == nil:
		t.Errorf("%s is allowed", what)
	case !allowed && !errors.Is(err, rpctypes.ErrPermissionDenied) && !strings.Contains(err.Error(), "permission denied"):
		t.Errorf("%s: %v, want it denied", what, err)
	}
}

// Without roles, the same tests find that everything is open.
func TestPermissionsAreNeeded(t *testing.T) {
	server := etcdtest.StartSecure(t, users()...)
	c := server.DialAs(t, User(routes, eventlog.Extensions))
	for _, way := range ways {
		if way.name != "get of the past" && way.try(t.Context(), c, "/registry/secrets/") != nil {
			t.Errorf("%s is refused without roles", way.name)
		}
	}
}
