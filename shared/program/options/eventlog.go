package options

import (
	"errors"
	"fmt"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"

	"triune.dev/shared/storage"
	"triune.dev/shared/storage/bytecache"
	"triune.dev/shared/storage/eventlog"
)

// EventLog holds the flags of the event log, and of the caches that it feeds. Without a
// URL of a NATS server there is no log: the process watches etcd itself.
type EventLog struct {
	// URLs are the servers of one NATS cluster.
	URLs []string
	// Credentials is a file with this tier's credentials, as `nsc` writes them.
	Credentials string
	// CAFile verifies the servers; CertFile and KeyFile authenticate this process.
	CAFile, CertFile, KeyFile string
	// Cluster is the prefix of the names of the streams, so that several clusters can
	// share a NATS.
	Cluster string
	// Relay names the tiers whose streams this process may be elected to write. If it is
	// empty, the process only reads.
	Relay []string
	// Storage is "file" or "memory", Replicas the number of copies of each message in the
	// NATS cluster. MaxAge and MaxBytes bound a stream; eventlog.StreamOptions documents
	// MaxBytes 0.
	Storage  string
	Replicas int
	MaxAge   time.Duration
	MaxBytes int64
	// CachePlainBytes bounds the stored objects that each tier keeps uncompressed in
	// memory. Beyond it, those that were not read lately are compressed. 0 compresses
	// nothing.
	CachePlainBytes int64
	// CacheLogBytes bounds the changes that each tier keeps in memory.
	CacheLogBytes int64
}

// Kinds of storage of a stream.
const (
	fileStorage   = "file"
	memoryStorage = "memory"
)

// NewEventLog returns the default options.
func NewEventLog() *EventLog {
	return &EventLog{
		Cluster: eventlog.DefaultCluster, Storage: fileStorage, Replicas: 1,
		MaxAge: eventlog.DefaultMaxAge, CachePlainBytes: bytecache.DefaultPlainBytes, CacheLogBytes: bytecache.DefaultLogBytes,
	}
}

// Open connects to NATS if a URL is given and returns the configuration of a tier's
// storage. The storage closes the connection.
func (o *EventLog) Open(tier string, registerer prometheus.Registerer) (storage.EventLog, error) {
	if len(o.URLs) == 0 {
		return o.WithConn(nil, registerer, eventlog.Tier(tier)), nil
	}
	// The permissions of the NATS user include the subjects of replies.
	routes := eventlog.NewRoutes(o.Cluster, "")
	inbox := routes.ReaderPermissions(eventlog.Tier(tier)).Inbox
	if len(o.Relay) > 0 {
		inbox = routes.RelayPermissions(nil).Inbox
	}
	conn, err := eventlog.Connect(eventlog.ConnectOptions{
		URLs: o.URLs, Name: tier, Inbox: inbox,
		CredentialsFile: o.Credentials, CAFile: o.CAFile, CertFile: o.CertFile, KeyFile: o.KeyFile,
	})
	if err != nil {
		return storage.EventLog{}, fmt.Errorf("--nats-url=%s: %w", strings.Join(o.URLs, ","), err)
	}
	log := o.WithConn(conn, registerer, eventlog.Tier(tier))
	log.CloseConn = true
	return log, nil
}

// WithConn returns the configuration of the storage of tiers that share an etcd. conn is
// nil without NATS; the caller closes it after the storage.
func (o *EventLog) WithConn(conn *nats.Conn, registerer prometheus.Registerer, tiers ...eventlog.Tier) storage.EventLog {
	relay := make([]eventlog.Tier, len(o.Relay))
	for i, tier := range o.Relay {
		relay[i] = eventlog.Tier(tier)
	}
	// The identity only informs people which process is elected; it may be ambiguous.
	host, _ := os.Hostname()
	plain := o.CachePlainBytes
	if plain == 0 {
		plain = -1
	}
	return storage.EventLog{
		Conn: conn, Cluster: o.Cluster, Tiers: tiers, Relay: relay,
		Stream: eventlog.StreamOptions{
			Memory: o.Storage == memoryStorage, Replicas: o.Replicas, MaxAge: o.MaxAge, MaxBytes: o.MaxBytes,
		},
		Identity: fmt.Sprintf("%s/%d", host, os.Getpid()), Registerer: registerer, PlainBytes: plain, LogBytes: o.CacheLogBytes,
	}
}

// AddFlags adds the flags.
func (o *EventLog) AddFlags(fs *pflag.FlagSet) {
	fs.StringSliceVar(&o.URLs, "nats-url", o.URLs,
		"URL of a server of the NATS cluster, with JetStream, that carries watch events. Repeat the flag for several. Without it this process watches etcd itself.")
	fs.StringVar(&o.Credentials, "nats-credentials", o.Credentials,
		"File with the NATS credentials of this tier.")
	fs.StringVar(&o.CAFile, "nats-cafile", o.CAFile, "CA bundle that verifies the NATS servers.")
	fs.StringVar(&o.CertFile, "nats-certfile", o.CertFile, "Client certificate for NATS.")
	fs.StringVar(&o.KeyFile, "nats-keyfile", o.KeyFile, "Key of the client certificate for NATS.")
	fs.StringVar(&o.Cluster, "event-log-cluster", o.Cluster,
		"Prefix of the names of this cluster's streams. It must differ between clusters that share a NATS.")
	fs.StringSliceVar(&o.Relay, "event-log-relay", o.Relay,
		"Tiers whose streams this process may be elected to write: those that share its etcd. Empty means that it only reads.")
	fs.StringVar(&o.Storage, "event-log-storage", o.Storage, "Where NATS keeps the streams: file or memory.")
	fs.IntVar(&o.Replicas, "event-log-replicas", o.Replicas, "Copies of a stream in the NATS cluster.")
	fs.DurationVar(&o.MaxAge, "event-log-max-age", o.MaxAge,
		"How long a stream keeps events. Watches can resume from events of that age without a new list.")
	fs.Int64Var(&o.MaxBytes, "event-log-max-bytes", o.MaxBytes, "How many bytes of events a stream keeps, or fewer if NATS has less space. 0 means 4 GiB in files, 1 GiB in memory.")
	fs.Int64Var(&o.CachePlainBytes, "cache-plain-bytes", o.CachePlainBytes,
		"How many bytes of stored objects a tier keeps uncompressed in memory. Beyond it, those that were not read lately are compressed. 0 compresses nothing.")
	fs.Int64Var(&o.CacheLogBytes, "cache-log-bytes", o.CacheLogBytes,
		"How many bytes of changes, of all resources together, a tier keeps in memory for watches that resume. Older ones are read from the event log.")
}

// Validate returns all problems, each naming its flag.
func (o *EventLog) Validate() []error {
	var errs []error
	for _, u := range o.URLs {
		parsed, err := url.Parse(u)
		if err != nil || parsed.Host == "" || !slices.Contains([]string{"nats", "tls", "ws", "wss"}, parsed.Scheme) {
			errs = append(errs, fmt.Errorf("--nats-url=%s: want nats://host:port or tls://host:port", u))
		}
	}
	for flag, file := range map[string]string{
		"nats-credentials": o.Credentials, "nats-cafile": o.CAFile, "nats-certfile": o.CertFile, "nats-keyfile": o.KeyFile,
	} {
		if file == "" {
			continue
		}
		if len(o.URLs) == 0 {
			errs = append(errs, fmt.Errorf("--%s needs --nats-url", flag))
		}
		if _, err := os.Stat(file); err != nil {
			errs = append(errs, fmt.Errorf("--%s: %w", flag, err))
		}
	}
	if (o.CertFile == "") != (o.KeyFile == "") {
		errs = append(errs, errors.New("--nats-certfile and --nats-keyfile go together"))
	}
	if o.Cluster == "" || strings.ContainsAny(o.Cluster, " .*>/\\\t\r\n") {
		errs = append(errs, fmt.Errorf("--event-log-cluster=%q: a name without spaces, dots, slashes and wildcards is needed", o.Cluster))
	}
	for _, tier := range o.Relay {
		if !slices.Contains(eventlog.Tiers, eventlog.Tier(tier)) {
			errs = append(errs, fmt.Errorf("--event-log-relay=%s: tiers are %s", tier, eventlog.Tiers))
		}
	}
	if o.Storage != fileStorage && o.Storage != memoryStorage {
		errs = append(errs, fmt.Errorf("--event-log-storage=%s: file or memory is needed", o.Storage))
	}
	if o.Replicas < 1 || o.Replicas > 5 {
		errs = append(errs, fmt.Errorf("--event-log-replicas=%d: NATS takes 1 to 5", o.Replicas))
	}
	if o.MaxAge <= 0 {
		errs = append(errs, fmt.Errorf("--event-log-max-age=%s: must be positive", o.MaxAge))
	}
	if o.MaxBytes < 0 {
		errs = append(errs, fmt.Errorf("--event-log-max-bytes=%d: must not be negative", o.MaxBytes))
	}
	if o.CachePlainBytes < 0 {
		errs = append(errs, fmt.Errorf("--cache-plain-bytes=%d: must not be negative", o.CachePlainBytes))
	}
	if o.CacheLogBytes <= 0 {
		errs = append(errs, fmt.Errorf("--cache-log-bytes=%d: must be positive", o.CacheLogBytes))
	}
	return errs
}
