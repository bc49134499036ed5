// Package healthcheck asks a server whether it is healthy, for container engines
// that run a command to learn it. Images without a shell have no other client.
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

	"triune.dev/shared/pki"
)

// bodyLimit is how much of an answer is read: a verbose readyz has 8 KiB.
const bodyLimit = 64 << 10

// Check says what to ask and how.
type Check struct {
	// URL answers 200 when the server is healthy: https://127.0.0.1:6443/readyz.
	URL string
	// CAFile verifies the certificate of the server. Empty stands for the CAs of
	// the system.
	CAFile string
	// Client is shown to the server if its CertFile is set.
	Client pki.Pair
	// TokenFile holds a bearer token to send, if it is set.
	TokenFile string
	// Timeout bounds the whole exchange; 0 sets no limit but that of the context.
	Timeout time.Duration
}

// Run asks once. The error is what a person looks at when a container is
// unhealthy: it names the URL and the status, and of an answer in the form of
// Kubernetes' readyz the lines of the checks that fail.
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
	// No proxy of the environment: the server is the one beside us.
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

// failing picks the failed checks, which readyz marks with [-], out of an answer;
// an answer of another form is given as it is.
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
