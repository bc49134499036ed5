// Package tools builds the programs that the tests run against and with: the
// reference kube-apiserver, the controllers, etcd, nats-server, kubectl, helm,
// kwok, Prometheus. Nothing is assumed to be installed but Go.
//
// Most of them come from modules that Triune itself is built of, so they are
// `tool` lines of tests/go.mod, compile in the workspace and share its build
// cache. Those that need other versions than ours (a workspace has one
// selection for all of its modules) have a module of their own below this
// directory, outside go.work, and are built with GOWORK=off.
//
// A tool is built once per version into .tools/<name>@<version>/<name> at the
// root of the checkout (programs call themselves by the name of their file);
// .tools/<name> is a link to the newest build. Building is safe from several
// processes at once.
package tools
