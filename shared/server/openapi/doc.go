// Package openapi generates the OpenAPI v2 and v3 documents of a tier from its resource table.
//
// kube-apiserver derives its documents from the routes of a router. Triune has a table instead,
// so this package presents the routes of the table through the route interfaces of
// k8s.io/kube-openapi/pkg/common and uses the builders of that module. The documents equal
// kube-apiserver's; the JSON is identical byte for byte.
//
// Make a [Service] with [New], give it the table with [Service.Describe], and serve its
// [Documents]. Nothing is built at the start. A document is built on its first request and kept
// in compressed form only, so that an idle tier holds a few hundred kilobytes of OpenAPI
// instead of kube-apiserver's forty megabytes. The definitions of Go types are generated code
// that takes milliseconds to run and megabytes to hold; they are generated when needed and
// dropped after a while.
//
// The same definitions say how the fields of an object merge. [Service.TypeConverter] provides
// them to server-side apply and managed fields (KEP-555), one kind at a time, at the first
// write of that kind.
//
// All methods are safe for concurrent use, except that Describe must return before the first
// request is served.
package openapi
