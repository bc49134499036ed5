package etcdroles

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/metadata"

	"triune.dev/shared/etcdstore/kv"
	"triune.dev/shared/eventlog"
)

// wayBack bounds turning authentication off again.
const wayBack = 10 * time.Second

// Root is etcd's name of the user, and of the role, that may do everything.
const Root = "root"

// User returns the name of a tier's user and role in etcd: the common name of its client
// certificate.
func User(routes *eventlog.Routes, tier eventlog.Tier) string { return routes.Stream(tier) }

// ErrForeign means that an etcd has users or roles, and none that Ensure has made.
var ErrForeign = errors.New("has users or roles of somebody else")

// ErrNotRoot means that etcd does not take the client for root.
var ErrNotRoot = errors.New(`does not take this client for its user root: the common name of the client certificate must be "root", and etcd must run with --client-cert-auth`)

// Ensure makes the users and roles of all tiers, with exactly the permissions that they
// need, and turns authentication on. It may be repeated, after an upgrade for example,
// which may bring other resources. Other users may be there, if Ensure was first.
//
// The client must be root's, with a certificate. Where etcd does not see that, nobody
// could undo it: so Ensure turns authentication off again before it fails.
func Ensure(ctx context.Context, etcd *clientv3.Client, routes *eventlog.Routes) error {
	e := &ensuring{etcd: etcd, ctx: ctx}
	enabled, err := e.look(User(routes, eventlog.Core))
	if err != nil {
		return err
	}
	// Core is the first: by its role an etcd is known that Ensure has been to.
	for _, tier := range []eventlog.Tier{eventlog.Core, eventlog.Aggregator, eventlog.Extensions} {
		name := User(routes, tier)
		if err := e.role(name, permissionsOf(routes, tier)); err != nil {
			return fmt.Errorf("role %s: %w", name, err)
		}
		if err := e.user(name); err != nil {
			return fmt.Errorf("user %s: %w", name, err)
		}
	}
	if enabled {
		return nil
	}
	if err := e.enable(); err != nil {
		return fmt.Errorf("enable authentication: %w", err)
	}
	return nil
}

// ensuring is one call of Ensure.
type ensuring struct {
	etcd         *clientv3.Client
	ctx          context.Context
	users, roles []string
}

// look finds out what is there. It fails if that is not ours.
func (e *ensuring) look(known string) (enabled bool, err error) {
	status, err := e.etcd.AuthStatus(e.ctx)
	if err != nil {
		return false, fmt.Errorf("status of authentication: %w", notRoot(err))
	}
	users, err := e.etcd.UserList(e.ctx)
	if err != nil {
		return false, fmt.Errorf("list users: %w", notRoot(err))
	}
	roles, err := e.etcd.RoleList(e.ctx)
	if err != nil {
		return false, fmt.Errorf("list roles: %w", notRoot(err))
	}
	e.users, e.roles = users.Users, roles.Roles
	if len(e.users)+len(e.roles) > 0 && !slices.Contains(e.roles, known) {
		return false, fmt.Errorf("etcd %w: users %q, roles %q; remove them, or manage its users yourself", ErrForeign, e.users, e.roles)
	}
	return status.Enabled, nil
}

func notRoot(err error) error {
	if errors.Is(err, rpctypes.ErrPermissionDenied) || errors.Is(err, rpctypes.ErrUserEmpty) || errors.Is(err, rpctypes.ErrUserNotFound) {
		return fmt.Errorf("etcd %w (%w)", ErrNotRoot, err)
	}
	return err
}

// role makes a role allow what it should, and then no more.
func (e *ensuring) role(name string, want permissions) error {
	if !slices.Contains(e.roles, name) {
		if _, err := e.etcd.RoleAdd(e.ctx, name); err != nil && !errors.Is(err, rpctypes.ErrRoleAlreadyExist) {
			return err
		}
	}
	resp, err := e.etcd.RoleGet(e.ctx, name)
	if err != nil {
		return err
	}
	have := granted(resp)
	for keys, kind := range want {
		if allowed, ok := have[keys]; ok && allowed == kind {
			continue
		}
		if _, err := e.etcd.RoleGrantPermission(e.ctx, name, keys.Key, keys.End, kind); err != nil {
			return fmt.Errorf("grant %s to %s: %w", keys.Key, keys.End, err)
		}
	}
	for keys := range have {
		if _, ok := want[keys]; ok {
			continue
		}
		_, err := e.etcd.RoleRevokePermission(e.ctx, name, keys.Key, keys.End)
		if err != nil && !errors.Is(err, rpctypes.ErrPermissionNotGranted) {
			return fmt.Errorf("revoke %s to %s: %w", keys.Key, keys.End, err)
		}
	}
	return nil
}

func granted(role *clientv3.AuthRoleGetResponse) permissions {
	p := permissions{}
	for _, given := range role.Perm {
		p[kv.KeyRange{Key: string(given.Key), End: string(given.RangeEnd)}] = clientv3.PermissionType(given.PermType)
	}
	return p
}

// user makes a user that has the role of its name, and no other. It has no password.
func (e *ensuring) user(name string) error {
	if !slices.Contains(e.users, name) {
		_, err := e.etcd.UserAddWithOptions(e.ctx, name, "", &clientv3.UserAddOptions{NoPassword: true})
		if err != nil && !errors.Is(err, rpctypes.ErrUserAlreadyExist) {
			return err
		}
	}
	resp, err := e.etcd.UserGet(e.ctx, name)
	if err != nil {
		return err
	}
	if !slices.Contains(resp.Roles, name) {
		if _, err := e.etcd.UserGrantRole(e.ctx, name, name); err != nil {
			return err
		}
	}
	for _, role := range resp.Roles {
		if role == name {
			continue
		}
		if _, err := e.etcd.UserRevokeRole(e.ctx, name, role); err != nil && !errors.Is(err, rpctypes.ErrRoleNotGranted) {
			return err
		}
	}
	return nil
}

// enable turns authentication on, and off again where etcd does not take this client for
// root then. The way back is a password that nobody else gets to know.
func (e *ensuring) enable() error {
	password := rand.Text()
	if slices.Contains(e.users, Root) {
		if _, err := e.etcd.UserChangePassword(e.ctx, Root, password); err != nil {
			return err
		}
	} else if _, err := e.etcd.UserAdd(e.ctx, Root, password); err != nil {
		return err
	}
	if _, err := e.etcd.UserGrantRole(e.ctx, Root, Root); err != nil {
		return err
	}
	if _, err := e.etcd.AuthEnable(e.ctx); err != nil {
		return err
	}
	_, err := e.etcd.AuthStatus(e.ctx)
	if err == nil {
		return nil
	}
	// Also if the context is over.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(e.ctx), wayBack)
	defer cancel()
	token, failed := e.etcd.Authenticate(ctx, Root, password)
	if failed == nil {
		_, failed = e.etcd.AuthDisable(metadata.AppendToOutgoingContext(ctx, rpctypes.TokenFieldNameGRPC, token.Token))
	}
	return errors.Join(notRoot(err), failed)
}
