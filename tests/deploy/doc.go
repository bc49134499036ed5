// Package deploy tests what Triune is installed with: docker-compose.yml, the Helm
// chart, the rules and dashboards. It uses the real programs: docker, helm,
// promtool, Prometheus, kube-apiserver.
package deploy
