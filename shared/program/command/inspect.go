package command

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/tools/clientcmd"

	"triune.dev/shared/program/inspect"
)

func inspectCommand() *cobra.Command {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	var overrides clientcmd.ConfigOverrides
	var output string
	var timeout time.Duration
	cmd := subcommand(&cobra.Command{
		Use: "inspect",
		Long: `Describe a running installation: its tiers and their replicas, which of them publishes
the event log, how far the others are behind, the largest resources, and the limits that
requests have hit. The server is that of a kubeconfig, as for kubectl, and its user must
be allowed to get /metrics and /triune/next/*.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if output != "text" && output != "json" {
				return fmt.Errorf("--output=%s: must be text or json", output)
			}
			config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &overrides).ClientConfig()
			if err != nil {
				return fmt.Errorf("--kubeconfig: %w", err)
			}
			ctx, cancel := context.WithTimeoutCause(cmd.Context(), timeout, fmt.Errorf("no answer within %v", timeout))
			defer cancel()
			report, err := inspect.Collect(ctx, config)
			if err != nil {
				return err
			}
			if output == "text" {
				return report.WriteText(cmd.OutOrStdout(), time.Now())
			}
			encoder := json.NewEncoder(cmd.OutOrStdout())
			encoder.SetIndent("", "  ")
			return encoder.Encode(report)
		},
	})
	fs := cmd.Flags()
	fs.StringVar(&rules.ExplicitPath, "kubeconfig", "", "Kubeconfig of the server and of the user. By default that of the environment variable KUBECONFIG, or else ~/.kube/config.")
	fs.StringVar(&overrides.CurrentContext, "context", "", "Context of the kubeconfig. By default its current one.")
	fs.StringVarP(&output, "output", "o", "text", "Format: text or json.")
	fs.DurationVar(&timeout, "timeout", 30*time.Second, "How long to wait for all responses.")
	return cmd
}
