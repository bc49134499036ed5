// Package core is the middle tier, which serves every built-in resource of Kubernetes.
//
// The storage providers of k8s.io/kubernetes define the resources: their defaulting,
// validation, strategies and subresources. Core installs them over Triune's storage,
// authenticates tokens for all tiers, and creates the first objects of a cluster: system
// namespaces, bootstrap RBAC, priority classes, flow schemas, the kubernetes Service with
// its endpoints, and the default ServiceCIDR.
//
// Core takes kube-apiserver's flags and adds those of the next tier. [Command] is the
// program. The order of use is [NewOptions], AddFlags, parse, Complete, Validate, Config,
// [New] and Run, once each.
package core
