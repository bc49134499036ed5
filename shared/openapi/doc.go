// Package openapi describes what a tier serves, in OpenAPI v2 and v3, out of its
// resource table.
//
// kube-apiserver derives its documents from the routes of a router. Triune has a
// table instead, so this package turns the table's routes into the route
// interfaces of k8s.io/kube-openapi/pkg/common and lets the builders of that
// module do the rest. The documents equal kube-apiserver's, to the byte where
// JSON is concerned.
//
// Nothing is built at start. [Service.Describe] only remembers the table. A
// document is built when it is first asked for, compressed, and its decoded form
// is dropped at once: a tier at rest holds a few hundred kilobytes of OpenAPI
// instead of kube-apiserver's forty megabytes. The definitions of Go types, from
// which everything is made, are generated code that takes milliseconds to run
// and megabytes to hold; they are made when needed and forgotten after a while.
//
// The same definitions say how the fields of an object merge. [Service.TypeConverter]
// makes that knowledge available to server-side apply and managed fields
// (KEP-555), a kind at a time, at the first write of that kind.
//
// All methods are safe for concurrent use, except that Describe must have
// returned before requests are served.
package openapi
