package e2e

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"

	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"

	"triune.dev/tests/cluster"
)

// tierUser is the prefix of the names with which tiers send requests to each other.
const tierUser = "system:triune:"

// mayWrite lists the requests between tiers that change something, or disclose permissions.
// All others only read.
var mayWrite = []string{
	"create authentication.k8s.io tokenreviews",
	"create authorization.k8s.io subjectaccessreviews",
	"update  resourcequotas/status",
	"patch flowcontrol.apiserver.k8s.io flowschemas/status",
	"put /triune/endpoints", "delete /triune/endpoints",
}

// ownRequests checks the requests between the tiers in the whole run, from their audit
// logs: all are allowed, none needs a right that it should not need, and none is sent as
// system:masters.
func ownRequests(c *cluster.Cluster, p *production, log func(format string, args ...any)) error {
	var problems []error
	used := map[string]int{}
	for _, tier := range c.ServingTiers() {
		content, err := os.ReadFile(p.auditLog(tier))
		if err != nil {
			return err
		}
		lines := bufio.NewScanner(bytes.NewReader(content))
		lines.Buffer(nil, 64<<20)
		for lines.Scan() {
			var event auditv1.Event
			if !bytes.Contains(lines.Bytes(), []byte(`"`+tierUser)) || json.Unmarshal(lines.Bytes(), &event) != nil {
				continue
			}
			asked := asked(&event)
			sender, ok := strings.CutPrefix(event.User.Username, tierUser)
			if !ok || sender == string(tier) || c.Config.Topology == cluster.Triune && slices.Contains(event.User.Groups, "system:masters") {
				continue // a tier may send any request to itself
			}
			used[sender+" asks "+string(tier)+": "+asked]++
			if slices.Contains(event.User.Groups, "system:masters") {
				problems = append(problems, fmt.Errorf("%s asks %s as system:masters: %s", sender, tier, asked))
			}
			if event.ResponseStatus != nil && event.ResponseStatus.Code == http.StatusForbidden {
				problems = append(problems, fmt.Errorf("%s may not ask %s: %s", sender, tier, asked))
			}
			if read := event.Verb == "get" || event.Verb == "list" || event.Verb == "watch"; !read && !slices.Contains(mayWrite, asked) {
				problems = append(problems, fmt.Errorf("%s writes to %s: %s", sender, tier, asked))
			}
			if event.ObjectRef != nil && event.ObjectRef.Resource == "secrets" {
				problems = append(problems, fmt.Errorf("%s asks %s about Secrets: %s", sender, tier, asked))
			}
		}
		if err := lines.Err(); err != nil {
			return err
		}
	}
	for _, line := range slices.Sorted(maps.Keys(used)) {
		log("%6d × %s", used[line], line)
	}
	if len(used) == 0 {
		problems = append(problems, errors.New("no audit log has a request of a tier to another"))
	}
	return errors.Join(problems[:min(len(problems), 20)]...)
}

// asked returns the verb and the resource of a request, without names.
func asked(event *auditv1.Event) string {
	ref := event.ObjectRef
	if ref == nil {
		path, _, _ := strings.Cut(event.RequestURI, "?")
		return event.Verb + " " + path
	}
	resource := ref.Resource
	if ref.Subresource != "" {
		resource += "/" + ref.Subresource
	}
	return event.Verb + " " + ref.APIGroup + " " + resource
}
