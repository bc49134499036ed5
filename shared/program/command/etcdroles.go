package command

import (
	"context"
	"crypto/tls"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apiserver/pkg/storage/storagebackend"

	"triune.dev/shared/storage/etcdroles"
	"triune.dev/shared/storage/etcdstore"
	"triune.dev/shared/storage/eventlog"
)

// etcdRolesFlags are the flags of the subcommand etcd-roles.
type etcdRolesFlags struct {
	etcd            storagebackend.TransportConfig
	prefix, cluster string
	timeout         time.Duration
}

func etcdRolesCommand() *cobra.Command {
	var f etcdRolesFlags
	cmd := subcommand(&cobra.Command{
		Use: "etcd-roles",
		Long: `Give each tier a user and a role of its own in etcd, and turn etcd's authentication
on: the user of a connection is then the common name of its client certificate,
triune-aggregator, triune-core or triune-extensions, and may access the keys of that
tier. The command needs the certificate of etcd's user root, and an etcd that asks for
certificates (--client-cert-auth) and compacts by itself (--auto-compaction-retention).
It may be run before every start and must be run after an upgrade. It refuses an etcd
that has other users or roles.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkFiles(cmd.Flags()); err != nil {
				return err
			}
			return f.run(cmd.Context())
		},
	})
	fs := cmd.Flags()
	fs.StringSliceVar(&f.etcd.ServerList, "etcd-servers", nil, "URLs of etcd's members.")
	fs.StringVar(&f.etcd.TrustedCAFile, "etcd-cafile", "", "File with the CA certificates that verify etcd.")
	fs.StringVar(&f.etcd.CertFile, "etcd-certfile", "", "Client certificate of etcd's user root.")
	fs.StringVar(&f.etcd.KeyFile, "etcd-keyfile", "", "Private key of --etcd-certfile.")
	fs.StringVar(&f.prefix, "etcd-prefix", "/registry", "Prefix of the keys of all objects, as given to the tiers.")
	fs.StringVar(&f.cluster, "event-log-cluster", eventlog.DefaultCluster, "Prefix of the names of the users and of the event log's streams, as given to the tiers.")
	fs.DurationVar(&f.timeout, "timeout", time.Minute, "Limit of the duration of the command.")
	for _, name := range []string{"etcd-servers", "etcd-certfile", "etcd-keyfile"} {
		if err := cmd.MarkFlagRequired(name); err != nil {
			panic(err) // there is no such flag
		}
	}
	return cmd
}

func (f *etcdRolesFlags) run(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, f.timeout)
	defer cancel()
	// Check the user before anything is changed; etcd would refuse it only later.
	pair, err := tls.LoadX509KeyPair(f.etcd.CertFile, f.etcd.KeyFile)
	if err != nil {
		return fmt.Errorf("--etcd-certfile=%s: %w", f.etcd.CertFile, err)
	}
	if name := pair.Leaf.Subject.CommonName; name != etcdroles.Root {
		return fmt.Errorf("--etcd-certfile=%s is the certificate of %q, not of etcd's user %s", f.etcd.CertFile, name, etcdroles.Root)
	}
	client, err := etcdstore.Dial(ctx, f.etcd)
	if err != nil {
		return fmt.Errorf("--etcd-servers: %w", err)
	}
	defer client.Close()
	if err := etcdroles.Ensure(ctx, client, eventlog.NewRoutes(f.cluster, f.prefix)); err != nil {
		return fmt.Errorf("--etcd-servers=%s: %w", strings.Join(f.etcd.ServerList, ","), err)
	}
	return nil
}
