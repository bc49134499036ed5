// Package healthcheck checks whether a server is healthy, for container engines that run a
// command to find out. Images without a shell have no other client. A [Check] may be run any
// number of times, also concurrently.
package healthcheck

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"triune.dev/shared/process/pki"
)

// bodyLimit bounds the part of a body that is read; a verbose readyz has 8 KiB.
const bodyLimit = 64 << 10

// Check describes the request to send.
type Check struct {
	// URL must answer 200 if the server is healthy, for example https://127.0.0.1:6443/readyz.
	URL string
	// CAFile verifies the certificate of the server. Empty means the CAs of the system.
	CAFile string
	// Client is the client certificate to present, if its CertFile is set.
	Client pki.Pair
	// TokenFile holds the bearer token to send, if set.
	TokenFile string
	// Timeout bounds the whole exchange; 0 means no limit besides the context.
	Timeout time.Duration
}

// Run sends one request. Its error is meant for a person who investigates an unhealthy
// container: it names the URL and the status, and the failed checks if the body has the format
// of Kubernetes' readyz.
func (c Check) Run(ctx context.Context) error {
	config := &tls.Config{}
	if c.CAFile != "" {
		pool, err := pki.LoadPool(c.CAFile)
		if err != nil {
			return err
		}
		config.RootCAs = pool
	}
	if c.Client.CertFile != "" {
		pair, err := c.Client.Load()
		if err != nil {
			return err
		}
		config.Certificates = []tls.Certificate{pair}
	}
	if c.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, c.Timeout, fmt.Errorf("no answer within %v", c.Timeout))
		defer cancel()
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.URL, nil)
	if err != nil {
		return fmt.Errorf("make request: %w", err)
	}
	if c.TokenFile != "" {
		token, err := os.ReadFile(c.TokenFile)
		if err != nil {
			return fmt.Errorf("read token: %w", err)
		}
		req.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	}
	// Ignore the proxies of the environment: the server runs on the same machine.
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: config, DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		if cause := context.Cause(ctx); cause != nil && !errors.Is(err, cause) {
			err = fmt.Errorf("%w (%w)", err, cause)
		}
		return err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, bodyLimit))
	if err != nil {
		return fmt.Errorf("read the answer of %s: %w", c.URL, err)
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answers %s: %s", c.URL, resp.Status, failing(string(body)))
	}
	return nil
}

// failing returns the failed checks, which readyz marks with [-], or the whole body if it has
// another format.
func failing(body string) string {
	var failed []string
	for line := range strings.Lines(body) {
		if strings.HasPrefix(line, "[-]") {
			failed = append(failed, strings.TrimSpace(line))
		}
	}
	if len(failed) == 0 {
		return strings.TrimSpace(body)
	}
	return strings.Join(failed, "; ")
}
