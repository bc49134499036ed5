package tools

import (
	"context"
	"encoding/json"
	"fmt"
)

// Module is another project's Go module, of which tests read files: manifests and examples,
// which are not copied. Nothing of it is compiled, so nothing that it requires is needed.
type Module struct {
	Path, Version string
	// Sum is the hash of its files, as in a go.sum.
	Sum string
}

// Projects are the modules of projects that many clusters run.
var Projects = map[string]Module{
	"argo-cd":             {"github.com/argoproj/argo-cd/v3", "v3.5.3", "h1:klbUb5LOK+oJSBkR0OYGlLkG9IpsPVtSR2idOdaQb2I="},
	"cert-manager":        {"github.com/cert-manager/cert-manager", "v1.21.2", "h1:UWgoYM+KLNtRlqmoWOKjKBOBUPVHeepQ6/ac3ERJW68="},
	"cluster-api":         {"sigs.k8s.io/cluster-api", "v1.14.2", "h1:o3GFNaeNFAOEEMpDPfhCK+2CjmV6gtQ8yLEcUwCg7bA="},
	"controller-runtime":  {"sigs.k8s.io/controller-runtime", "v0.24.1", "h1:miPEwrmirImAvgME1L9qebGHrOnGJoVmVdtOU9fRfo4="},
	"crossplane":          {"github.com/crossplane/crossplane/v2", "v2.1.0", "h1:7RFel1CeIWQytwtHz1st7lZiycYXUIcS0LkaetCJa4Q="},
	"external-secrets":    {"github.com/external-secrets/external-secrets", "v1.3.2", "h1:u2J8RjlHIeF0oZCqtl92adI/uZWUwOesJIDkfql6LqQ="},
	"gateway-api":         {"sigs.k8s.io/gateway-api", "v1.6.3", "h1:lKpJa5bGlraC/QeACvCpsHLdmO6y0iKfzVl6gzaFEYc="},
	"keda":                {"github.com/kedacore/keda/v2", "v2.21.0", "h1:R6z2HZvstK4RLUMxroNACzBj74xGxt3kG59b5Xc+Xps="},
	"knative-serving":     {"knative.dev/serving", "v0.51.0", "h1:yN2Q7eYqJgoPfZkATjoBZyGbZ2P1Qhns9HIMU4mF+to="},
	"prometheus-operator": {"github.com/prometheus-operator/prometheus-operator", "v0.94.1", "h1:QEIb2wenPH+SdMN1xMf8l4Pmj00YYXXI6HlbLlQWkww="},
	"source-controller":   {"github.com/fluxcd/source-controller", "v1.9.3", "h1:Zj1gfvK/2MFIm/K3vh5fSHoJBoggLKMuLWf5ZEmaF0w="},
}

// Dir returns the directory of the module's files, and downloads them first if necessary.
func (m Module) Dir(ctx context.Context) (string, error) {
	root, err := Root()
	if err != nil {
		return "", err
	}
	// At the root of the checkout, without go.work, no go.mod of ours has a say.
	t := Tool{Name: m.Path, Dir: ".."}
	out, err := t.run(ctx, root, "mod", "download", "-json", m.Path+"@"+m.Version)
	if err != nil {
		return "", fmt.Errorf("download %s: %w", m.Path, err)
	}
	var found struct{ Dir, Sum string }
	if err := json.Unmarshal([]byte(out), &found); err != nil {
		return "", fmt.Errorf("download %s: %w", m.Path, err)
	}
	if found.Sum != m.Sum {
		return "", fmt.Errorf("download %s: %s has the sum %s, not %s", m.Path, m.Version, found.Sum, m.Sum)
	}
	return found.Dir, nil
}
