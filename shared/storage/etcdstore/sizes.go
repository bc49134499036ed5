package etcdstore

import (
	"context"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/storage/etcd3/metrics"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
)

// sizeTimeout bounds one question for the size of a database.
const sizeTimeout = 5 * time.Second

// PollDatabaseSize updates apiserver_storage_db_total_size_in_bytes for each
// endpoint of a client (--etcd-db-metric-poll-interval) until the context is
// done, which is no error. An interval of 0 returns at once.
func PollDatabaseSize(ctx context.Context, client *clientv3.Client, interval time.Duration) error {
	if interval <= 0 {
		return nil
	}
	c := versioned{client}
	for {
		for _, endpoint := range c.Endpoints() {
			size, err := databaseSize(ctx, c, endpoint)
			if ctx.Err() != nil {
				return nil
			}
			if err != nil {
				klog.V(4).InfoS("size of the etcd database is unknown", "endpoint", endpoint, "err", err)
			}
			metrics.UpdateEtcdDbSize(endpoint, size)
		}
		// Jitter, so that several API servers do not ask at the same time.
		if !sleep(ctx, clock.RealClock{}, wait.Jitter(interval, 0.5)) {
			return nil
		}
	}
}

func databaseSize(ctx context.Context, c versioned, endpoint string) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, sizeTimeout)
	defer cancel()
	status, err := c.Status(ctx, endpoint)
	if err != nil {
		return -1, err
	}
	return status.DbSize, nil
}

// ReportSizes makes apiserver_storage_size_bytes show the databases of the
// given clients, asked at each scrape; the labels follow their order.
func ReportSizes(clients ...*clientv3.Client) {
	metrics.SetStorageMonitorGetter(func() ([]metrics.Monitor, error) {
		monitors := make([]metrics.Monitor, len(clients))
		for i, c := range clients {
			monitors[i] = sizeMonitor{versioned{c}}
		}
		return monitors, nil
	})
}

type sizeMonitor struct{ client versioned }

// Monitor implements metrics.Monitor.
func (m sizeMonitor) Monitor(ctx context.Context) (metrics.StorageMetrics, error) {
	status, err := m.client.Status(ctx, m.client.Endpoints()[0])
	if err != nil {
		return metrics.StorageMetrics{}, err
	}
	return metrics.StorageMetrics{Size: status.DbSize}, nil
}

// Close implements metrics.Monitor; the client is its owner's to close.
func (m sizeMonitor) Close() error { return nil }
