package workload

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"time"

	"triune.dev/tests/bench/load"
	"triune.dev/tests/bench/report"
)

// chain measures the handler chain in a cluster with many rules: authentication from its
// cache, RBAC, priority and fairness, and audit. All rows have the same request, a GET of a
// config map that is answered from memory. A member of system:masters bypasses RBAC and
// fairness, and [AuditPolicy] excludes it, so its row has the rest: transport,
// authentication and the handler.
var chain = []Workload{
	{
		Name: "chain-masters", Title: "GET small config map, by system:masters: no RBAC, fairness or audit", Group: chainGroup,
		Figure: report.CPUPerOp, Audited: true,
		Run: func(ctx context.Context, e *Env, publish Publish) error {
			s, err := e.throughChain(ctx, e.Admin, false)
			if err == nil {
				e.passed = s
				publish("", 0, s)
			}
			return err
		},
	},
	chainOf("chain-token", "a ServiceAccount's token", func(ctx context.Context, e *Env) (load.Target, error) {
		return e.accountOf(ctx, chainNamespace, "reader")
	}),
	chainOf("chain-certificate", "a client certificate", func(_ context.Context, e *Env) (load.Target, error) {
		return e.Reader, nil
	}),
}

// Chain is the phase from which the same request by system:masters is subtracted.
const Chain = "less the same by system:masters"

const (
	chainGroup     = "request chain"
	chainNamespace = "team-0"
	chainPath      = "/api/v1/namespaces/" + chainNamespace + "/configmaps/small?resourceVersion=0"

	rbacPath        = "/apis/rbac.authorization.k8s.io/v1"
	rbacNamespaces  = 100
	rbacRoles       = 1000 // and as many cluster roles
	rbacBindings    = 5000 // and as many cluster role bindings
	rolesPerSpace   = rbacRoles / rbacNamespaces
	bindingsOfSpace = rbacBindings / rbacNamespaces
)

// Readers is the group of [Env.Reader].
const Readers = "readers"

// AuditPolicy is the audit policy of [Workload.Audited].
const AuditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: None
  userGroups: ["system:masters"]
- level: Metadata
`

func chainOf(name, credential string, user func(context.Context, *Env) (load.Target, error)) Workload {
	return Workload{
		Name: name, Title: "GET small config map, by " + credential + ": 2,000 roles, 10,000 bindings, audit", Group: chainGroup,
		Figure: report.CPUPerOp, Audited: true, Only: api,
		Run: func(ctx context.Context, e *Env, publish Publish) error {
			if err := e.rbac(ctx); err != nil {
				return err
			}
			target, err := user(ctx, e)
			if err != nil {
				return err
			}
			s, err := e.throughChain(ctx, target, true)
			if err != nil {
				return err
			}
			publish("", 0, s)
			if e.passed.Ops == 0 {
				return fmt.Errorf("%w: chain-masters was not measured before", load.ErrAnswer)
			}
			alone := report.Sample{Ops: s.Ops, CPU: maps.Clone(s.CPU)}
			for process := range alone.CPU {
				alone.CPU[process] -= e.passed.CPU[process]
			}
			publish(Chain, 0, alone)
			return nil
		},
	}
}

// throughChain measures the request of one user, and checks whether it was audited.
func (e *Env) throughChain(ctx context.Context, user load.Target, audited bool) (report.Sample, error) {
	if !e.Subject.Floor {
		if err := e.rbac(ctx); err != nil {
			return report.Sample{}, err
		}
	}
	conns := load.DialAll(loadConns, e.as(user)...)
	defer load.CloseAll(conns)
	if err := e.dial(ctx, conns); err != nil {
		return report.Sample{}, err
	}
	request, err := e.translate(chainGroup, load.Request{Path: chainPath, Accept: jsonType, MinSize: 100})
	if err != nil {
		return report.Sample{}, err
	}
	for _, c := range conns {
		if err := e.allowed(ctx, c, request); err != nil {
			return report.Sample{}, err
		}
	}
	next := func(int) load.Request { return request }
	if _, err := (load.Closed{For: pick(e, 200*time.Millisecond, time.Second)}).Run(ctx, conns, next); err != nil {
		return report.Sample{}, fmt.Errorf("warm up: %w", err)
	}
	before, err := e.audited()
	if err != nil {
		return report.Sample{}, err
	}
	s, err := e.measure(ctx, func() (load.Result, error) {
		return load.Closed{For: pick(e, time.Second, 5*time.Second)}.Run(ctx, conns, next)
	})
	if err != nil {
		return report.Sample{}, err
	}
	after, err := e.audited()
	if err != nil {
		return report.Sample{}, err
	}
	written := float64(after-before) / float64(s.Ops)
	// An event names the user, the object and the time; a few events are those of others.
	if least := 300.0; audited != (written > least) && !e.Subject.Floor {
		return report.Sample{}, fmt.Errorf("%w: %.0f bytes of audit for each request", load.ErrAnswer, written)
	}
	s.Notes = map[string]float64{"audit bytes": written}
	e.Sizes[chainGroup] = int64(s.Body)
	e.profileReads(ctx, conns, next)
	return s, nil
}

// as returns the replicas that receive requests, with the credential of user.
func (e *Env) as(user load.Target) []load.Target {
	var all []load.Target
	for _, target := range e.Targets {
		if e.Subject.Floor {
			all = append(all, target)
			continue
		}
		user.URL = target.URL
		all = append(all, user)
	}
	return all
}

func (e *Env) audited() (int64, error) {
	if e.AuditBytes == nil {
		return 0, nil
	}
	return e.AuditBytes()
}

// allowed waits until the server knows the rule that allows a request.
func (e *Env) allowed(ctx context.Context, conn *load.Conn, request load.Request) error {
	ctx, cancel := context.WithTimeoutCause(ctx, time.Minute, errors.New("the rule did not arrive within a minute"))
	defer cancel()
	for {
		_, err := conn.Get(ctx, request)
		if status(err) != http.StatusForbidden {
			return err
		}
		if err := pause(ctx, 20*time.Millisecond); err != nil {
			return err
		}
	}
}

// accountOf creates a ServiceAccount and returns a target with its token.
func (e *Env) accountOf(ctx context.Context, namespace, name string) (load.Target, error) {
	path := "/api/v1/namespaces/" + namespace + "/serviceaccounts"
	if _, err := e.send(ctx, post(path, object{"metadata": object{"name": name}})); err != nil {
		return load.Target{}, err
	}
	answer, err := e.send(ctx, post(path+"/"+name+"/token", object{
		"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": object{"expirationSeconds": 3600},
	}))
	if err != nil {
		return load.Target{}, err
	}
	var issued struct {
		Status struct{ Token string } `json:"status"`
	}
	if err := json.Unmarshal(answer, &issued); err != nil {
		return load.Target{}, fmt.Errorf("read the token of %s: %w", name, err)
	}
	target := e.Targets[0]
	target.Token = issued.Status.Token
	return target, nil
}

// rbac creates 2,000 roles and 10,000 bindings. A few of them name the groups of the
// readers, and one of these allows the request.
func (e *Env) rbac(ctx context.Context) error {
	return e.once("roles and bindings", func() error {
		conns := load.DialAll(loadConns, e.as(e.Admin)...)
		defer load.CloseAll(conns)
		for _, step := range []struct {
			n    int
			next load.Next
		}{
			{rbacNamespaces, func(i int) load.Request {
				return post("/api/v1/namespaces", object{"metadata": object{"name": spaceName(i)}})
			}},
			{1, func(int) load.Request {
				return post("/api/v1/namespaces/"+chainNamespace+"/configmaps", object{"metadata": object{"name": "small"}, "data": object{"a": "b"}})
			}},
			{rbacRoles, clusterRole}, {rbacRoles, role},
			{rbacBindings, clusterRoleBinding}, {rbacBindings, roleBinding},
		} {
			if _, err := (load.Closed{MinOps: step.n, MaxOps: step.n}).Run(ctx, conns, step.next); err != nil {
				return err
			}
		}
		return pause(ctx, calmed)
	})
}

func spaceName(i int) string { return fmt.Sprintf("team-%d", i%rbacNamespaces) }

func rules(resources ...string) []object {
	return []object{
		{"apiGroups": []string{"apps"}, "resources": []string{"deployments", "statefulsets"}, "verbs": []string{"get", "list", "watch", "patch"}},
		{"apiGroups": []string{""}, "resources": resources, "verbs": []string{"get", "list", "watch"}},
	}
}

func clusterRole(i int) load.Request {
	return post(rbacPath+"/clusterroles", object{"metadata": object{"name": fmt.Sprintf("role-%d", i)}, "rules": rules("nodes", "persistentvolumes")})
}

// role returns a role of a namespace; the last one of each allows reading config maps.
func role(i int) load.Request {
	allowed := "services"
	if i/rbacNamespaces == rolesPerSpace-1 {
		allowed = "configmaps"
	}
	return post(rbacPath+"/namespaces/"+spaceName(i)+"/roles", object{"metadata": object{"name": fmt.Sprintf("role-%d", i/rbacNamespaces)}, "rules": rules(allowed, "pods")})
}

// clusterRoleBinding names the readers in one of a thousand.
func clusterRoleBinding(i int) load.Request {
	return post(rbacPath+"/clusterrolebindings", object{
		"metadata": object{"name": fmt.Sprintf("binding-%d", i)},
		"roleRef":  roleRef("ClusterRole", fmt.Sprintf("role-%d", i%rbacRoles)), "subjects": subjects(i, i%1000 == 7),
	})
}

// roleBinding names the readers in 3 of the 50 of a namespace. Half of all bindings refer
// to cluster roles.
func roleBinding(i int) load.Request {
	nth := i / rbacNamespaces
	ref := roleRef("Role", fmt.Sprintf("role-%d", nth%rolesPerSpace))
	if nth%2 == 0 {
		ref = roleRef("ClusterRole", fmt.Sprintf("role-%d", i%rbacRoles))
	}
	return post(rbacPath+"/namespaces/"+spaceName(i)+"/rolebindings", object{
		"metadata": object{"name": fmt.Sprintf("binding-%d", nth)}, "roleRef": ref,
		"subjects": subjects(i, nth == 10 || nth == 11 || nth == bindingsOfSpace-1),
	})
}

func roleRef(kind, name string) object {
	return object{"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name}
}

func subjects(i int, readers bool) []object {
	subject := func(kind, name string) object {
		return object{"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name}
	}
	all := []object{
		subject("User", fmt.Sprintf("user-%d", i)), subject("Group", fmt.Sprintf("group-%d", i%500)),
		{"kind": "ServiceAccount", "name": "default", "namespace": fmt.Sprintf("other-%d", i%rbacNamespaces)},
	}
	if readers {
		all = append(all, subject("Group", Readers), subject("Group", "system:serviceaccounts:"+chainNamespace))
	}
	return all
}
