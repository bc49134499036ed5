package command

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"strconv"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/klog/v2"
)

// reloadFlags are the flags of the subcommand reload.
type reloadFlags struct {
	pidFile  string
	files    []string
	interval time.Duration
}

func reloadCommand() *cobra.Command {
	var f reloadFlags
	cmd := subcommand(&cobra.Command{
		Use: "reload",
		Long: `Send SIGHUP to a server whenever one of its files changes, for example to
nats-server, which reloads certificates only on that signal. The command runs until it
is stopped. It must see the server's process and run as the same user.`,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd.Context()) },
	})
	fs := cmd.Flags()
	fs.StringVar(&f.pidFile, "pid-file", "", "File with the process id of the server.")
	fs.StringSliceVar(&f.files, "file", nil, "File to watch. Repeat the flag for several.")
	fs.DurationVar(&f.interval, "interval", 10*time.Second, "How often to read the files.")
	for _, name := range []string{"pid-file", "file"} {
		if err := cmd.MarkFlagRequired(name); err != nil {
			panic(err) // there is no such flag
		}
	}
	return cmd
}

func (f *reloadFlags) run(ctx context.Context) error {
	if f.interval <= 0 {
		return fmt.Errorf("--interval=%v must be positive", f.interval)
	}
	ticker := time.NewTicker(f.interval)
	defer ticker.Stop()
	// The first signal is sent whatever the files hold: they may have changed after the
	// server read them.
	var signalled [sha256.Size]byte
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		now, err := f.digest()
		if err == nil && now != signalled {
			err = f.signal()
		}
		if err != nil {
			// The server may be starting, or the files may be being written.
			klog.FromContext(ctx).Error(err, "reload the server; will retry", "after", f.interval)
			continue
		}
		signalled = now
	}
}

// digest returns a hash of the content of all files.
func (f *reloadFlags) digest() (sum [sha256.Size]byte, err error) {
	hash := sha256.New()
	for _, name := range f.files {
		data, err := os.ReadFile(name)
		if err != nil {
			return sum, fmt.Errorf("--file=%s: %w", name, err)
		}
		one := sha256.Sum256(data)
		hash.Write(one[:])
	}
	return [sha256.Size]byte(hash.Sum(nil)), nil
}

func (f *reloadFlags) signal() error {
	data, err := os.ReadFile(f.pidFile)
	if err != nil {
		return fmt.Errorf("--pid-file=%s: %w", f.pidFile, err)
	}
	pid, err := strconv.Atoi(string(bytes.TrimSpace(data)))
	if err != nil || pid <= 0 {
		return fmt.Errorf("--pid-file=%s holds no process id", f.pidFile)
	}
	process, err := os.FindProcess(pid)
	if err != nil {
		return fmt.Errorf("find process %d: %w", pid, err)
	}
	if err := process.Signal(syscall.SIGHUP); err != nil {
		return fmt.Errorf("signal process %d: %w", pid, err)
	}
	return nil
}
