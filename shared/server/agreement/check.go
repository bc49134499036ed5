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
	// unsettledInterval is the time between two comparisons until the tier agrees with core,
	// and settledInterval afterwards.
	unsettledInterval, settledInterval = time.Second, 30 * time.Second
	// timeout bounds one request.
	timeout = 2 * time.Second
)

// Config configures a Check.
type Config struct {
	// Tier is this tier, and Core the tier to compare with.
	Tier, Core string
	// Own returns the settings of Tier. It is called for each comparison.
	Own func() (Settings, error)
	// Ask returns the content of Path at core.
	Ask func(ctx context.Context) ([]byte, error)
	// OnCoreSettings, if set, is called with core's settings before the state of the Check
	// changes, and with nil if core is of an earlier release that publishes none.
	OnCoreSettings func(Settings)
	// Registerer registers the metric; nil means none.
	Registerer prometheus.Registerer
}

// Check repeatedly compares a tier's settings with core's. It implements healthz.HealthChecker
// of k8s.io/apiserver, for readyz.
type Check struct {
	config         Config
	contradictions prometheus.Gauge

	mu sync.Mutex
	// asked: core was asked at least once, successfully or not. passed: the tier has agreed
	// with core at least once.
	asked, passed bool
	lines         []string // current contradictions
}

// New returns a Check that has not compared yet.
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

// Run compares until ctx ends.
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
		return settledInterval
	}
	return unsettledInterval
}

// ask compares once and logs changes.
func (c *Check) ask(ctx context.Context) {
	lines, compared, err := c.compare(ctx)
	if ctx.Err() != nil {
		return
	}
	log := klog.FromContext(ctx)
	if err != nil {
		log.V(2).Info("settings not compared", "tier", c.config.Core, "err", err)
	}
	if c.record(lines, compared) {
		log.Info("compared settings with another tier", "contradictions", lines)
	}
}

// record stores the result of a comparison, and reports whether the contradictions changed.
func (c *Check) record(lines []string, compared bool) (changed bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asked = true
	if !compared {
		return false
	}
	changed = !slices.Equal(c.lines, lines)
	c.lines, c.passed = lines, c.passed || len(lines) == 0
	c.contradictions.Set(float64(len(lines)))
	return changed
}

// compare returns the contradictions. compared is false if core did not answer.
func (c *Check) compare(ctx context.Context) (lines []string, compared bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	content, err := c.config.Ask(ctx)
	if apierrors.IsNotFound(err) {
		c.onCoreSettings(nil)
		return nil, true, nil // core is of an earlier release
	}
	if err != nil {
		return nil, false, err
	}
	var core Settings
	if err := json.Unmarshal(content, &core); err != nil {
		return nil, false, fmt.Errorf("settings of %s: %w", c.config.Core, err)
	}
	c.onCoreSettings(core)
	own, err := c.config.Own()
	if err != nil {
		// The file was readable at the start; its reload reports the error.
		return nil, false, err
	}
	return own.Contradictions(c.config.Tier, c.config.Core, core), true, nil
}

func (c *Check) onCoreSettings(core Settings) {
	if c.config.OnCoreSettings != nil {
		c.config.OnCoreSettings(core)
	}
}

// Name implements healthz.HealthChecker.
func (c *Check) Name() string { return "settings" }

// Check returns an error until core was asked, and while a tier that has never agreed with core
// contradicts it. An unavailable core is no contradiction, because a tier works without it.
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

// Detail returns one line for each contradiction of a tier that stays ready.
func (c *Check) Detail() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.lines) == 0 {
		return ""
	}
	return strings.Join(c.lines, "\n") + "\n"
}
