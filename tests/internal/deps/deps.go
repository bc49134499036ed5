//go:build deps

// Package deps names modules for the go command alone: it is never built, and
// keeps `go mod tidy` from dropping a requirement of this workspace that no
// package of this module imports.
package deps

import (
	_ "github.com/anishathalye/porcupine"
	_ "github.com/emicklei/go-restful/v3"
	_ "github.com/google/go-cmp/cmp"
	_ "github.com/google/uuid"
	_ "github.com/labstack/echo/v4"
	_ "github.com/nats-io/nats-server/v2/server"
	_ "github.com/nats-io/nats.go"
	_ "github.com/nats-io/nats.go/jetstream"
	_ "github.com/prometheus/client_golang/prometheus/promhttp"
	_ "github.com/spf13/cobra"
	_ "github.com/spf13/pflag"
	_ "github.com/tidwall/btree"
	_ "go.etcd.io/etcd/client/v3"
	_ "go.etcd.io/etcd/server/v3/embed"
	_ "go.etcd.io/etcd/server/v3/etcdserver/api/v3client"
	_ "go.uber.org/goleak"
	_ "golang.org/x/net/http2"
	_ "golang.org/x/sync/errgroup"
	_ "google.golang.org/grpc"
	_ "google.golang.org/protobuf/proto"
	_ "k8s.io/api/core/v1"
	_ "k8s.io/apiextensions-apiserver/pkg/apiserver"
	_ "k8s.io/apimachinery/pkg/runtime"
	_ "k8s.io/apiserver/pkg/server/options"
	_ "k8s.io/client-go/kubernetes"
	_ "k8s.io/component-base/version"
	_ "k8s.io/klog/v2"
	_ "k8s.io/kube-aggregator/pkg/apiserver"
	_ "k8s.io/kube-openapi/pkg/builder3"
	_ "k8s.io/kubernetes/cmd/kube-apiserver/app/options"
	_ "k8s.io/kubernetes/pkg/controlplane"
	_ "k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac"
	_ "k8s.io/utils/clock"
	_ "sigs.k8s.io/structured-merge-diff/v6/typed"
	_ "sigs.k8s.io/yaml"
	_ "triune.dev/shared"
)
