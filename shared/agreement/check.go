package agreement

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/klog/v2"
)

const (
	// waiting is the time between two questions until core is agreed with, and settled
	// that between two afterwards.
	waiting, settled = time.Second, 30 * time.Second
	// timeout bounds one question.
	timeout = 2 * time.Second
)

// Config configures a Check.
type Config struct {
	// Tier is the one that asks, Core the one that is asked.
	Tier, Core string
	// Own returns what Tier has been told, at each comparison.
	Own func() (Settings, error)
	// Ask returns the content of Path at core.
	Ask func(ctx context.Context) ([]byte, error)
	// Heard gets core's settings whenever they have come, before the Check's state
	// changes, and nil where core publishes none, being of an earlier release. Nil for
	// nobody.
	Heard func(Settings)
	// Registerer gets the metric; nil for none.
	Registerer prometheus.Registerer
}

// Check compares a tier's settings with core's, again and again. It is a health check of
// k8s.io/apiserver, for readyz.
type Check struct {
	config         Config
	contradictions prometheus.Gauge

	mu sync.Mutex
	// asked: core has been asked once, with or without an answer. passed: it has been
	// agreed with once.
	asked, passed bool
	lines         []string // contradictions
}

// New returns a Check that has not asked yet.
func New(config Config) (*Check, error) {
	c := &Check{config: config, contradictions: prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "triune_settings_contradicted",
		Help: "Settings of this tier that contradict core's.",
	})}
	if config.Registerer == nil {
		return c, nil
	}
	if err := config.Registerer.Register(c.contradictions); err != nil {
		return nil, fmt.Errorf("register the metric of contradictions: %w", err)
	}
	return c, nil
}

// Run asks until ctx ends.
func (c *Check) Run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
			c.ask(ctx)
			timer.Reset(c.pause())
		case <-ctx.Done():
			return
		}
	}
}

func (c *Check) pause() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.passed && len(c.lines) == 0 {
		return settled
	}
	return waiting
}

// ask compares once.
func (c *Check) ask(ctx context.Context) {
	lines, heard, err := c.compare(ctx)
	if ctx.Err() != nil {
		return
	}
	log := klog.FromContext(ctx)
	if err != nil {
		log.V(2).Info("settings not compared", "tier", c.config.Core, "err", err)
	}
	if c.note(lines, heard) {
		log.Info("compared settings with another tier", "contradictions", lines)
	}
}

// note takes the outcome of a question, and reports whether the contradictions are others
// than before.
func (c *Check) note(lines []string, heard bool) (changed bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asked = true
	if !heard {
		return false
	}
	changed = !slices.Equal(c.lines, lines)
	c.lines, c.passed = lines, c.passed || len(lines) == 0
	c.contradictions.Set(float64(len(lines)))
	return changed
}

// compare returns the contradictions. heard is false where core could not be asked.
func (c *Check) compare(ctx context.Context) (lines []string, heard bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	content, err := c.config.Ask(ctx)
	if apierrors.IsNotFound(err) {
		c.hear(nil)
		return nil, true, nil // an earlier release
	}
	if err != nil {
		return nil, false, err
	}
	var core Settings
	if err := json.Unmarshal(content, &core); err != nil {
		return nil, false, fmt.Errorf("settings of %s: %w", c.config.Core, err)
	}
	c.hear(core)
	own, err := c.config.Own()
	if err != nil {
		// A file that cannot be read now was read at the start; its reload complains.
		return nil, false, err
	}
	return own.Contradictions(c.config.Tier, c.config.Core, core), true, nil
}

func (c *Check) hear(core Settings) {
	if c.config.Heard != nil {
		c.config.Heard(core)
	}
}

// Name implements healthz.HealthChecker.
func (c *Check) Name() string { return "settings" }

// Check returns an error until core has been asked, and while a tier contradicts core that
// has never agreed with it. A core that cannot be asked is not contradicted: a tier works
// without it.
func (c *Check) Check(*http.Request) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case !c.asked:
		return errors.New(c.config.Core + " has not been asked for its settings yet")
	case len(c.lines) > 0 && !c.passed:
		return errors.New(strings.Join(c.lines, "; "))
	}
	return nil
}

// Detail returns a line for each contradiction of a tier that stays ready.
func (c *Check) Detail() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.lines) == 0 {
		return ""
	}
	return strings.Join(c.lines, "\n") + "\n"
}
