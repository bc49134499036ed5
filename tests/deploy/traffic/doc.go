// Package traffic keeps a server busy with everything that the dashboards show: writes,
// reads, lists and watches of a built-in and of a custom resource. It measures nothing;
// tests/bench does.
package traffic
