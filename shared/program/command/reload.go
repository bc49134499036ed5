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

// reloadFlags are what the subcommand reload is told.
type reloadFlags struct {
	pidFile string
	files   []string
	every   time.Duration
}

func reloadCommand() *cobra.Command {
	var f reloadFlags
	cmd := subcommand(&cobra.Command{
		Use: "reload",
		Long: `Send SIGHUP to a server whenever files that it has read change, until this is
stopped: for nats-server, which reads certificates again only when it is told to. It
has to see the server's processes, and to run as the same user.`,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd.Context()) },
	})
	fs := cmd.Flags()
	fs.StringVar(&f.pidFile, "pid-file", "", "File in which the server has written its process id.")
	fs.StringSliceVar(&f.files, "file", nil, "File to look at. Repeat the flag for several.")
	fs.DurationVar(&f.every, "interval", 10*time.Second, "How often to look.")
	for _, name := range []string{"pid-file", "file"} {
		if err := cmd.MarkFlagRequired(name); err != nil {
			panic(err) // the flag is there
		}
	}
	return cmd
}

func (f *reloadFlags) run(ctx context.Context) error {
	if f.every <= 0 {
		return fmt.Errorf("--interval=%v is not above 0", f.every)
	}
	ticker := time.NewTicker(f.every)
	defer ticker.Stop()
	// Nothing yet: what has changed between the server's start and ours is not missed.
	var told [sha256.Size]byte
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		now, err := f.digest()
		if err == nil && now != told {
			err = f.signal()
		}
		if err != nil {
			// The server may be on its way up, the files on their way in.
			klog.FromContext(ctx).Error(err, "not reloaded, next attempt follows", "after", f.every)
			continue
		}
		told = now
	}
}

// digest stands for the content of all files.
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
