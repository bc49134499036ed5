// Package tools builds the programs that the tests use: the reference kube-apiserver, the
// controllers, etcd, nats-server, kubectl, helm, kwok, Prometheus. Only Go has to be
// installed.
//
// Most of them come from modules of Triune's own build, so they are `tool` lines of
// tests/go.mod, compile in the workspace and share its build cache. Tools that need other
// versions (a workspace has one selection for all of its modules) have their own module
// below this directory, outside go.work, and are built with GOWORK=off.
//
// A tool is built once per version into .tools/<name>@<version>/<name> at the root of the
// checkout (programs use the name of their file); .tools/<name> is a link to the newest
// build. Concurrent builds by several processes are safe.
package tools
