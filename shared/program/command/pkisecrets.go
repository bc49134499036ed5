package command

import (
	"context"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/spf13/cobra"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/clientcmd"

	"triune.dev/shared/process/pki/secrets"
)

// pkiSecretsFlags are the flags of the subcommand pki-secrets.
type pkiSecretsFlags struct {
	list, kubeconfig, namespace string
	rotation                    string
	delete                      bool
	timeout                     time.Duration
}

func pkiSecretsCommand() *cobra.Command {
	var f pkiSecretsFlags
	cmd := subcommand(&cobra.Command{
		Use: "pki-secrets",
		Long: `Keep the certificates and keys of an installation in Secrets of the cluster that
it runs in. Correct Secrets are kept, missing ones are made, and leaf certificates are
issued again with a new key after two thirds of their lifetime. Secrets that hold
something wrong are reported and never overwritten. The command is meant to be run
periodically; it prints each Secret that it writes, with the reason.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkFiles(cmd.Flags()); err != nil {
				return err
			}
			return f.run(cmd.Context(), cmd.OutOrStdout())
		},
	})
	fs := cmd.Flags()
	fs.StringVar(&f.list, "certificates", "", "File with the list of authorities, certificates and keys, in YAML.")
	fs.StringVar(&f.kubeconfig, "kubeconfig", "", "Kubeconfig of the cluster with the Secrets. By default the cluster of this pod.")
	fs.StringVar(&f.namespace, "namespace", "", "Namespace of the Secrets. By default the one of the kubeconfig, or of this pod.")
	fs.StringVar(&f.rotation, "rotation", "", "Step of the replacement of all authorities: trust, issue, or empty for its end. Every program must have read the Secrets of one step before the next.")
	fs.BoolVar(&f.delete, "delete", false, "Delete the Secrets of the list instead.")
	fs.DurationVar(&f.timeout, "timeout", time.Minute, "Limit of the duration of the command.")
	if err := cmd.MarkFlagRequired("certificates"); err != nil {
		panic(err) // there is no such flag
	}
	return cmd
}

func (f *pkiSecretsFlags) run(ctx context.Context, out io.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, f.timeout)
	defer cancel()
	rotation := secrets.Rotation(f.rotation)
	if !slices.Contains(secrets.Rotations, rotation) {
		return fmt.Errorf("--rotation=%s is not one of %q", f.rotation, secrets.Rotations)
	}
	list, err := secrets.Load(f.list)
	if err != nil {
		return fmt.Errorf("--certificates=%s: %w", f.list, err)
	}
	config := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(
		&clientcmd.ClientConfigLoadingRules{ExplicitPath: f.kubeconfig}, &clientcmd.ConfigOverrides{})
	cluster, err := config.ClientConfig()
	if err != nil {
		return fmt.Errorf("--kubeconfig=%s: %w", f.kubeconfig, err)
	}
	cluster.QPS = -1 // no limit: the keeper sends at most two requests for each Secret, one at a time
	namespace := f.namespace
	if namespace == "" {
		if namespace, _, err = config.Namespace(); err != nil {
			return fmt.Errorf("--kubeconfig=%s: %w", f.kubeconfig, err)
		}
	}
	client, err := corev1client.NewForConfig(cluster)
	if err != nil {
		return fmt.Errorf("--kubeconfig=%s: %w", f.kubeconfig, err)
	}
	keeper := &secrets.Keeper{
		Client: client.Secrets(namespace), List: list, Rotation: rotation,
		Changed: func(secret, reason string) { fmt.Fprintf(out, "Secret %s/%s: %s\n", namespace, secret, reason) },
	}
	if f.delete {
		return keeper.Delete(ctx)
	}
	return keeper.Ensure(ctx)
}
