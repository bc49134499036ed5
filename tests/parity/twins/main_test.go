package twins

import (
	"cmp"
	"flag"
	"os"

	"triune.dev/tests/cluster"
)

var (
	target   = flag.String("target", cmp.Or(os.Getenv("TRIUNE_TARGET"), string(cluster.Triune)), "topology to compare with kube-apiserver: triune, tiers, or kube-apiserver for a check of the suite")
	replicas = flag.Int("replicas", cluster.Replicas(1), "replicas of every tier of the tiers topology")
)
