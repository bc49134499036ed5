// Package traffic keeps a server busy with a little of everything that the
// dashboards show: writes, reads, lists and watches of a built-in resource and of a
// custom one. It measures nothing; tests/bench does.
package traffic
