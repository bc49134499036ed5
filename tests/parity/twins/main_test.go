package twins

import "triune.dev/tests/cluster"

var target, replicas = cluster.SuiteFlags(cluster.ToCompare, 1)
