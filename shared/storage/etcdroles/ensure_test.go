package etcdroles

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"triune.dev/shared/storage/eventlog"
	"triune.dev/shared/testing/etcdtest"
)

var routes = eventlog.NewRoutes(eventlog.DefaultCluster, "/registry")

// users returns the names for which the tests have certificates.
func users() []string {
	names := []string{Root, "somebody"}
	for _, tier := range eventlog.Tiers {
		names = append(names, User(routes, tier))
	}
	return names
}

// secured starts an etcd with roles.
func secured(t *testing.T) (server *etcdtest.Server, root *clientv3.Client) {
	t.Helper()
	server = etcdtest.StartSecure(t, users()...)
	root = server.DialAs(t, Root)
	if err := Ensure(t.Context(), root, routes); err != nil {
		t.Fatal(err)
	}
	return server, root
}

// state is everything that Ensure creates.
type state struct {
	Enabled bool
	// Revision counts the changes of users and roles.
	Revision uint64
	Users    map[string][]string
	Roles    map[string]permissions
}

func stateOf(t *testing.T, etcd *clientv3.Client) state {
	t.Helper()
	status, err := etcd.AuthStatus(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	users, err := etcd.UserList(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	roles, err := etcd.RoleList(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	s := state{Enabled: status.Enabled, Revision: status.AuthRevision, Users: map[string][]string{}, Roles: map[string]permissions{}}
	for _, name := range users.Users {
		user, err := etcd.UserGet(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		s.Users[name] = user.Roles
	}
	for _, name := range roles.Roles {
		role, err := etcd.RoleGet(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		s.Roles[name] = granted(role)
	}
	return s
}

func TestEnsure(t *testing.T) {
	_, root := secured(t)
	made := stateOf(t, root)
	want := map[string][]string{Root: {Root}}
	for _, tier := range eventlog.Tiers {
		name := User(routes, tier)
		want[name] = []string{name}
		if diff := cmp.Diff(permissionsOf(routes, tier), made.Roles[name]); diff != "" {
			t.Errorf("role %s (-want +got):\n%s", name, diff)
		}
	}
	if diff := cmp.Diff(want, made.Users); diff != "" || !made.Enabled {
		t.Errorf("enabled %t, users (-want +got):\n%s", made.Enabled, diff)
	}
	if len(made.Roles) != len(eventlog.Tiers) {
		t.Errorf("roles %v", made.Roles)
	}

	// Correct users and roles are not touched: every change makes etcd reject the requests in
	// flight.
	if err := Ensure(t.Context(), root, routes); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(made, stateOf(t, root)); diff != "" {
		t.Errorf("a second time (-before +after):\n%s", diff)
	}
}

// Ensure corrects what an earlier release or another client left behind. Other users remain.
func TestEnsureRepairs(t *testing.T) {
	_, root := secured(t)
	want := stateOf(t, root)
	core, extensions := User(routes, eventlog.Core), User(routes, eventlog.Extensions)
	pods := "/registry/pods/"
	for what, change := range map[string]func() error{
		"a kind that is new": func() error {
			_, err := root.RoleRevokePermission(t.Context(), core, pods, clientv3.GetPrefixRangeEnd(pods))
			return err
		},
		"a kind that is gone": func() error {
			_, err := root.RoleGrantPermission(t.Context(), core, "/registry/old/", "/registry/old0", readWrite)
			return err
		},
		"less than before": func() error {
			_, err := root.RoleGrantPermission(t.Context(), core, pods, clientv3.GetPrefixRangeEnd(pods), read)
			return err
		},
		"more than before": func() error {
			_, err := root.RoleGrantPermission(t.Context(), extensions, "/registry/", "/registry0", read)
			return err
		},
		"another role": func() error {
			_, err := root.UserGrantRole(t.Context(), extensions, core)
			return err
		},
		"a user that is gone": func() error {
			_, err := root.UserDelete(t.Context(), extensions)
			return err
		},
		"a role that is gone": func() error {
			_, err := root.RoleDelete(t.Context(), extensions)
			return err
		},
	} {
		t.Run(what, func(t *testing.T) {
			if err := change(); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, stateOf(t, root)); diff == "" {
				t.Fatal("nothing has changed")
			}
			if err := Ensure(t.Context(), root, routes); err != nil {
				t.Fatal(err)
			}
			got := stateOf(t, root)
			got.Revision = want.Revision
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
	if _, err := root.UserAdd(t.Context(), "backup", "secret"); err != nil {
		t.Fatal(err)
	}
	if err := Ensure(t.Context(), root, routes); err != nil {
		t.Fatal(err)
	}
	if _, ok := stateOf(t, root).Users["backup"]; !ok {
		t.Error("a user of somebody else is gone")
	}
}

// An etcd with foreign users is refused and not changed.
func TestForeign(t *testing.T) {
	for what, prepare := range map[string]func(*testing.T, *clientv3.Client) error{
		"a user": func(t *testing.T, c *clientv3.Client) error {
			_, err := c.UserAdd(t.Context(), "somebody", "secret")
			return err
		},
		"a role": func(t *testing.T, c *clientv3.Client) error {
			_, err := c.RoleAdd(t.Context(), "reader")
			return err
		},
		"root, enabled": func(t *testing.T, c *clientv3.Client) error {
			_, add := c.UserAdd(t.Context(), Root, "secret")
			_, grant := c.UserGrantRole(t.Context(), Root, Root)
			_, enable := c.AuthEnable(t.Context())
			return errors.Join(add, grant, enable)
		},
	} {
		t.Run(what, func(t *testing.T) {
			root := etcdtest.StartSecure(t, users()...).DialAs(t, Root)
			if err := prepare(t, root); err != nil {
				t.Fatal(err)
			}
			before := stateOf(t, root)
			if err := Ensure(t.Context(), root, routes); !errors.Is(err, ErrForeign) {
				t.Errorf("got %v", err)
			}
			if diff := cmp.Diff(before, stateOf(t, root)); diff != "" {
				t.Errorf("(-before +after):\n%s", diff)
			}
		})
	}
}

// A client that etcd does not recognize as root cannot lock everybody out.
func TestNotRoot(t *testing.T) {
	server := etcdtest.StartSecure(t, users()...)
	core := server.DialAs(t, User(routes, eventlog.Core))
	if err := Ensure(t.Context(), core, routes); !errors.Is(err, ErrNotRoot) {
		t.Errorf("with another certificate: %v", err)
	}
	if stateOf(t, core).Enabled {
		t.Error("authentication is enabled, and nobody can change it")
	}
	if err := Ensure(t.Context(), server.DialAs(t, Root), routes); err != nil {
		t.Errorf("as root afterwards: %v", err)
	}
	if err := Ensure(t.Context(), core, routes); !errors.Is(err, ErrNotRoot) {
		t.Errorf("with another certificate, enabled: %v", err)
	}

	open := etcdtest.Start(t).Dial(t)
	if err := Ensure(t.Context(), open, routes); !errors.Is(err, ErrNotRoot) {
		t.Errorf("an etcd that asks for no certificates: %v", err)
	}
	if stateOf(t, open).Enabled {
		t.Error("authentication is enabled where there are no certificates")
	}
}

// Roles survive a restart, and Ensure completes an earlier run that was interrupted anywhere.
func TestEnsureIsCompleted(t *testing.T) {
	server, root := secured(t)
	want := stateOf(t, root)
	if _, err := root.AuthDisable(t.Context()); err != nil {
		t.Fatal(err)
	}
	remove := []func() error{
		func() error { return nil },
		func() error { _, err := root.UserDelete(t.Context(), Root); return err },
		func() error { _, err := root.UserDelete(t.Context(), User(routes, eventlog.Extensions)); return err },
		func() error { _, err := root.RoleDelete(t.Context(), User(routes, eventlog.Extensions)); return err },
		func() error { _, err := root.RoleDelete(t.Context(), User(routes, eventlog.Aggregator)); return err },
		func() error { _, err := root.UserDelete(t.Context(), User(routes, eventlog.Core)); return err },
	}
	for i := range remove {
		for _, undo := range remove[:i+1] {
			if err := undo(); err != nil {
				t.Fatal(err)
			}
		}
		if err := Ensure(t.Context(), root, routes); err != nil {
			t.Fatalf("after step %d: %v", i, err)
		}
		got := stateOf(t, root)
		got.Revision = want.Revision
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("after step %d (-want +got):\n%s", i, diff)
		}
		if i < len(remove)-1 {
			if _, err := root.AuthDisable(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
	server.Restart(t)
	if !stateOf(t, server.DialAs(t, Root)).Enabled {
		t.Error("a restart has turned authentication off")
	}
	somebody := server.DialAs(t, "somebody")
	if _, err := somebody.Get(t.Context(), "/registry/"); !errors.Is(err, rpctypes.ErrPermissionDenied) {
		t.Errorf("somebody else: %v", err)
	}
}
