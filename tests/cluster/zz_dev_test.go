package cluster

import (
	"os"
	"testing"
	"time"
)

func TestZZDev(t *testing.T) {
	d := os.Getenv("TRIUNE_DEV")
	if d == "" {
		t.Skip()
	}
	c := Run(t, Config{Topology: Topology(os.Getenv("TRIUNE_TOPO"))})
	os.WriteFile(d, []byte("export KUBECONFIG="+c.Kubeconfig+"\nexport U="+c.URL+"\nexport DIR="+c.Dir+"\nexport ETCD="+c.EtcdURL+"\n"), 0o644)
	for {
		if _, err := os.Stat(d); err != nil {
			return
		}
		time.Sleep(time.Second)
	}
}
