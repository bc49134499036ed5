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

// etcdRolesFlags are what the subcommand etcd-roles is told.
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
on: whoever connects is then the common name of its certificate, triune-aggregator,
triune-core or triune-extensions, and reaches the keys of that tier. It needs the
certificate of etcd's user root, and an etcd that asks for certificates
(--client-cert-auth) and compacts by itself (--auto-compaction-retention). It may
be run before every start and is needed after an upgrade; an etcd whose users
somebody else has made is refused.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkFiles(cmd.Flags()); err != nil {
				return err
			}
			return f.run(cmd.Context())
		},
	})
	fs := cmd.Flags()
	fs.StringSliceVar(&f.etcd.ServerList, "etcd-servers", nil, "URLs of etcd's members.")
	fs.StringVar(&f.etcd.TrustedCAFile, "etcd-cafile", "", "CA certificates that etcd is verified with.")
	fs.StringVar(&f.etcd.CertFile, "etcd-certfile", "", "Client certificate of etcd's user root.")
	fs.StringVar(&f.etcd.KeyFile, "etcd-keyfile", "", "Private key of --etcd-certfile.")
	fs.StringVar(&f.prefix, "etcd-prefix", "/registry", "What all keys of objects begin with, as the tiers are told.")
	fs.StringVar(&f.cluster, "event-log-cluster", eventlog.DefaultCluster, "What the names of the users begin with, as those of the event log's streams; the tiers are told the same.")
	fs.DurationVar(&f.timeout, "timeout", time.Minute, "How long it may take.")
	for _, name := range []string{"etcd-servers", "etcd-certfile", "etcd-keyfile"} {
		if err := cmd.MarkFlagRequired(name); err != nil {
			panic(err) // the flag is there
		}
	}
	return cmd
}

func (f *etcdRolesFlags) run(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, f.timeout)
	defer cancel()
	// etcd tells only when it is too late to begin with.
	pair, err := tls.LoadX509KeyPair(f.etcd.CertFile, f.etcd.KeyFile)
	if err != nil {
		return fmt.Errorf("--etcd-certfile=%s: %w", f.etcd.CertFile, err)
	}
	if name := pair.Leaf.Subject.CommonName; name != etcdroles.Root {
		return fmt.Errorf("--etcd-certfile=%s is of %q, and not of etcd's user %s", f.etcd.CertFile, name, etcdroles.Root)
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
