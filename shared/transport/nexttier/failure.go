package nexttier

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// unavailableError means that the request was not sent, because no replica is available.
type unavailableError struct{ cause error }

func (e *unavailableError) Error() string { return e.cause.Error() }
func (e *unavailableError) Unwrap() error { return e.cause }

// brokenError means that the request was sent, but no response arrived.
type brokenError struct{ cause error }

func (e *brokenError) Error() string { return e.cause.Error() }
func (e *brokenError) Unwrap() error { return e.cause }

// errDistrusted means that the next tier refused the front-proxy certificate.
var errDistrusted = errors.New("the front-proxy certificate was refused")

// errHeaderTooLarge means that the request has longer headers than the next tier accepts.
var errHeaderTooLarge = newStatusError(http.StatusRequestHeaderFieldsTooLarge, metav1.StatusReasonUnknown, "the header fields of the request are too large", 0)

// errNoPath means that the request has no path, as in CONNECT and in the absolute form of
// HTTP/1.1. HTTP/2 would send "/" instead (RFC 9113, section 8.3.1), which the next tier serves.
var errNoPath = newStatusError(http.StatusNotFound, metav1.StatusReasonNotFound, "the server could not find the requested resource", 0)

// retryAfter is the value of Retry-After, in seconds.
const retryAfter = 1

// statusFor returns the error for the client; the package comment has the table. The message
// does not contain err, which has addresses in it; err is logged instead.
func (p *Proxy) statusFor(req *http.Request, err error) *apierrors.StatusError {
	var unavailable *unavailableError
	switch {
	case errors.Is(err, errDistrusted):
		return newStatusError(http.StatusServiceUnavailable, metav1.StatusReasonInternalError,
			fmt.Sprintf("the %s tier does not trust the tier in front of it: this is no fault of the client", p.config.Tier), 0)
	case errors.Is(req.Context().Err(), context.DeadlineExceeded):
		return newStatusError(http.StatusGatewayTimeout, metav1.StatusReasonTimeout,
			fmt.Sprintf("the %s tier did not answer within the time of the request", p.config.Tier), 0)
	case errors.As(err, &unavailable):
		return newStatusError(http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable,
			fmt.Sprintf("the %s tier is not available", p.config.Tier), retryAfter)
	case isSafe(req.Method):
		return newStatusError(http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable,
			fmt.Sprintf("the connection to the %s tier broke", p.config.Tier), retryAfter)
	}
	return newStatusError(http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable,
		fmt.Sprintf("the connection to the %s tier broke: the request may or may not have been carried out", p.config.Tier), 0)
}

func newStatusError(code int32, reason metav1.StatusReason, message string, retryAfterSeconds int32) *apierrors.StatusError {
	s := metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
		Status:   metav1.StatusFailure,
		Code:     code,
		Reason:   reason,
		Message:  message,
	}
	if retryAfterSeconds > 0 {
		s.Details = &metav1.StatusDetails{RetryAfterSeconds: retryAfterSeconds}
	}
	return &apierrors.StatusError{ErrStatus: s}
}

// writeStatus is the default of [Config.OnError]. All clients can read errors in JSON.
func writeStatus(w http.ResponseWriter, _ *http.Request, err *apierrors.StatusError) {
	data, encodeErr := json.Marshal(err.ErrStatus)
	if encodeErr != nil {
		http.Error(w, err.ErrStatus.Message, int(err.ErrStatus.Code))
		return
	}
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(data)))
	if d := err.ErrStatus.Details; d != nil && d.RetryAfterSeconds > 0 {
		h.Set("Retry-After", strconv.Itoa(int(d.RetryAfterSeconds)))
	}
	w.WriteHeader(int(err.ErrStatus.Code))
	_, _ = w.Write(data) // the client may have gone
}
