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

	"triune.dev/shared/storage/eventlog"
	"triune.dev/shared/storage/kv"
)

// disableTimeout bounds disabling authentication again.
const disableTimeout = 10 * time.Second

// Root is the name of the user and of the role that may do everything.
const Root = "root"

// User returns the name of a tier's user and role in etcd, which is the common name of its
// client certificate.
func User(routes *eventlog.Routes, tier eventlog.Tier) string { return routes.Stream(tier) }

// ErrForeign means that an etcd has users or roles, but none that Ensure created.
var ErrForeign = errors.New("has users or roles of somebody else")

// ErrNotRoot means that etcd does not recognize the client as root.
var ErrNotRoot = errors.New(`does not take this client for its user root: the common name of the client certificate must be "root", and etcd must run with --client-cert-auth`)

// Ensure creates the users and roles of all tiers, with exactly the permissions they need, and
// enables authentication. It is idempotent: run it again after an upgrade, which may add
// resources. Other users may exist if Ensure ran before they were created.
//
// The client must have the certificate of root. If etcd did not recognize it, nobody could
// disable authentication any more, so Ensure disables it again before it returns ErrNotRoot.
func Ensure(ctx context.Context, etcd *clientv3.Client, routes *eventlog.Routes) error {
	e := &ensurer{etcd: etcd, ctx: ctx}
	enabled, err := e.inspect(User(routes, eventlog.Core))
	if err != nil {
		return err
	}
	// Core comes first: its role shows that Ensure has been here.
	for _, tier := range []eventlog.Tier{eventlog.Core, eventlog.Aggregator, eventlog.Extensions} {
		name := User(routes, tier)
		if err := e.ensureRole(name, permissionsOf(routes, tier)); err != nil {
			return fmt.Errorf("role %s: %w", name, err)
		}
		if err := e.ensureUser(name); err != nil {
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

// ensurer is the state of one call of Ensure.
type ensurer struct {
	etcd         *clientv3.Client
	ctx          context.Context
	users, roles []string
}

// inspect lists the existing users and roles. It returns ErrForeign if Ensure did not create
// them.
func (e *ensurer) inspect(known string) (enabled bool, err error) {
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

// ensureRole grants a role the permissions in want, and then revokes all others.
func (e *ensurer) ensureRole(name string, want permissions) error {
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

// ensureUser creates a user without a password whose only role has the same name.
func (e *ensurer) ensureUser(name string) error {
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

// enable enables authentication, and disables it again if etcd then does not recognize this
// client as root. It does so with a random password that is not stored.
func (e *ensurer) enable() error {
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
	// This must work even if the context is done.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(e.ctx), disableTimeout)
	defer cancel()
	token, failed := e.etcd.Authenticate(ctx, Root, password)
	if failed == nil {
		_, failed = e.etcd.AuthDisable(metadata.AppendToOutgoingContext(ctx, rpctypes.TokenFieldNameGRPC, token.Token))
	}
	return errors.Join(notRoot(err), failed)
}
