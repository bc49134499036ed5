// Package apiserver implements the server that every tier is built from.
//
// A tier starts in the steps of kube-apiserver: options are completed and validated and
// become a [Config]; Complete makes a [CompletedConfig] of it; its New builds a [Server],
// which is not running; the tier installs API groups, routes, health checks and hooks;
// Prepare fixes them; Run listens, starts the hooks and blocks until its context is
// cancelled.
//
// Echo routes all requests. Each API group-version has one wildcard route, which leads to
// its resource table (package resources). The other routes are non-resource paths: health,
// metrics, discovery, OpenAPI, version and so on. Ownership of a path follows from these
// routes, so that every route is owned. Requests for other paths go to [Next], the tier
// behind this one; the tail of the chain has no Next and owns every path.
//
// # Start and shutdown
//
// Hooks run after the server listens, each in a goroutine that Run waits for. readyz fails
// until every hook has returned. The order of a shutdown is: readyz fails, the shutdown
// delay passes, pre-shutdown hooks run, no more requests are accepted, watches end, requests
// in flight finish, and then hooks and storage stop.
package apiserver
