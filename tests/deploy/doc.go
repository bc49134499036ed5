// Package deploy tests the means of installation: docker-compose.yml, the Helm chart, the
// rules and dashboards. It uses the real programs: docker, helm, promtool, Prometheus,
// kube-apiserver.
package deploy
