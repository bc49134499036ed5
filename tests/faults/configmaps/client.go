package configmaps

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"triune.dev/tests/faults/history"
	"triune.dev/tests/faults/wire"
)

// Client sends requests for the config maps k0, k1, … of one namespace, each to the next of
// several servers. It must not be used concurrently.
type Client struct {
	HTTP *http.Client
	// URLs are the addresses of the servers.
	URLs []string
	// Namespace must exist.
	Namespace string
	// Timeout is the timeout of a request.
	Timeout time.Duration
	// Rest is how long Exercise pauses after a request without an outcome.
	Rest time.Duration
	// Stale makes reads use resourceVersion=0, which allows old answers, to check that the
	// checker notices.
	Stale bool

	next int
}

const valueKey = "value"

func name(key int) string { return "k" + strconv.Itoa(key) }

// Do sends one request and returns its outcome, as far as it is known. An error is an
// answer that no API server may give.
func (c *Client) Do(ctx context.Context, r history.Request) (history.Answer, error) {
	server := c.URLs[c.next%len(c.URLs)]
	c.next++
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	req, err := c.request(ctx, server, r)
	if err != nil {
		return history.Answer{}, err
	}
	status, o, err := wire.Do(c.HTTP, req)
	if err != nil {
		a := history.Answer{Result: history.Unknown, Detail: err.Error()}
		if wire.Undialled(err) {
			a.Result = history.Refused
		}
		return a, nil
	}
	a, err := answer(r, status, o)
	if err != nil {
		return a, fmt.Errorf("%s %s: %w", req.Method, req.URL, err)
	}
	a.Detail = strings.TrimSpace(server + " " + a.Detail)
	return a, nil
}

func (c *Client) request(ctx context.Context, server string, r history.Request) (*http.Request, error) {
	collection := server + "/api/v1/namespaces/" + c.Namespace + "/configmaps"
	one := collection + "/" + name(r.Key)
	body := wire.Object{APIVersion: "v1", Kind: "ConfigMap", Metadata: wire.Metadata{Name: name(r.Key)}, Data: map[string]string{valueKey: r.Value}}
	switch r.Verb {
	case history.Get, history.List:
		target := one
		if r.Verb == history.List {
			target = collection
		}
		if c.Stale {
			target += "?" + url.Values{"resourceVersion": {"0"}}.Encode()
		}
		return wire.NewRequest(ctx, http.MethodGet, target, "", nil)
	case history.Create:
		return wire.NewRequest(ctx, http.MethodPost, collection, "application/json", body)
	case history.Update:
		body.Metadata.ResourceVersion = strconv.FormatInt(r.Revision, 10)
		return wire.NewRequest(ctx, http.MethodPut, one, "application/json", body)
	case history.Patch:
		return wire.NewRequest(ctx, http.MethodPatch, one, "application/merge-patch+json", map[string]any{"data": body.Data})
	case history.Delete:
		if r.Revision == 0 {
			return wire.NewRequest(ctx, http.MethodDelete, one, "", nil)
		}
		return wire.NewRequest(ctx, http.MethodDelete, one, "application/json", map[string]any{
			"apiVersion": "v1", "kind": "DeleteOptions",
			"preconditions": map[string]any{"resourceVersion": strconv.FormatInt(r.Revision, 10)},
		})
	}
	return nil, fmt.Errorf("no such verb: %q", r.Verb)
}

// answer converts a server's answer.
func answer(r history.Request, status int, o wire.Object) (history.Answer, error) {
	a := history.Answer{}
	switch {
	case status == http.StatusOK || status == http.StatusCreated:
		a.Result = history.Done
		return done(r, a, o)
	case status == http.StatusNotFound && o.Reason == "NotFound" && r.Verb != history.List:
		a.Result = history.Absent
	case status == http.StatusConflict && o.Reason == "AlreadyExists" && r.Verb == history.Create:
		a.Result = history.Exists
	case status == http.StatusConflict && o.Reason == "Conflict" && r.Verb.Writes():
		a.Result = history.Conflict
	case status == http.StatusTooManyRequests:
		a.Result = history.Refused
	case status >= 500:
		a.Result = history.Unknown
	default:
		return a, fmt.Errorf("answered with %d: %s: %s", status, o.Reason, o.Message)
	}
	if status >= 500 {
		a.Detail = fmt.Sprintf("%d: %s", status, o.Message)
	}
	return a, nil
}

func done(r history.Request, a history.Answer, o wire.Object) (history.Answer, error) {
	var err error
	switch r.Verb {
	case history.Delete:
		return a, nil
	case history.List:
		if a.Revision, err = o.Metadata.Revision(); err != nil {
			return a, err
		}
		a.Items = map[int]history.Item{}
		for _, each := range o.Items {
			digits, ours := strings.CutPrefix(each.Metadata.Name, "k")
			key, err := strconv.Atoi(digits)
			if !ours || err != nil {
				continue // kube-root-ca.crt, which a controller may write
			}
			if a.Items[key], err = item(each); err != nil {
				return a, err
			}
		}
		return a, nil
	}
	if want := name(r.Key); o.Metadata.Name != want {
		return a, fmt.Errorf("the answer is about %q, not %q", o.Metadata.Name, want)
	}
	a.Item, err = item(o)
	return a, err
}

func item(o wire.Object) (history.Item, error) {
	revision, err := o.Metadata.Revision()
	if err != nil {
		return history.Item{}, err
	}
	return history.Item{Revision: revision, Value: o.Data[valueKey]}, nil
}
