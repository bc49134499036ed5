package reads

import (
	"os"
	"testing"

	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
)

func TestMain(m *testing.M) {
	// Requests that are meant to fail would fill the log.
	utilruntime.ErrorHandlers = nil //nolint:reassign // the package's own way to replace them
	os.Exit(m.Run())
}
