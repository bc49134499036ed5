// Package apiserver is the server that every tier is made of.
//
// A tier's life has the steps the reference gives kube-apiserver: its options
// are completed and validated, become a [Config], which is completed; [New]
// builds the server with nothing running; Prepare fixes its health checks and
// its routes; Run listens, starts the hooks and blocks until its context ends.
//
// Echo carries all routes. There are two families of them. API routes, one
// wildcard per group-version, lead into the resource table (package resources); plain
// routes are health, metrics, discovery, OpenAPI, version and their like. Which
// paths the tier owns is read off the same two lists, so a route cannot exist
// without being owned. What is not owned goes to [Next], the tier behind this
// one; the tail of the chain has no Next and owns everything.
//
// # Start and end
//
// Hooks run after the server listens, each in a goroutine that Run waits for;
// readyz is red until every hook has returned. At the end the order is: readyz
// turns red, the shutdown delay passes, pre-shutdown hooks run, no more requests
// are taken, watches end, requests in flight finish, and only then do hooks and
// storage go away.
package apiserver
