package etcdstore

import (
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage"
)

// With the feature gate AllowUnsafeMalformedObjectDeletion, an object that cannot be
// decrypted or decoded is reported as corrupt, so that an administrator can find and
// delete it (KEP-3926).

type unreadableReason string

const (
	untransformable unreadableReason = "data from the storage is not transformable"
	undecodable     unreadableReason = "object not decodable"
)

// unreadableError is an error of an object, not of etcd.
type unreadableError struct {
	reason   unreadableReason
	revision int64 // 0 if unknown
	err      error
}

func (e *unreadableError) Error() string {
	return fmt.Sprintf("%s revision=%d: %v", e.reason, e.revision, e.err)
}

func (e *unreadableError) Unwrap() error { return e.err }

// corruptError converts the error of reading an object to the one by which the registry
// recognises a corrupt object. It returns other errors unchanged.
func (s *Store) corruptError(key string, err error) error {
	var unreadable *unreadableError
	if err == nil || !errors.As(err, &unreadable) {
		return err
	}
	return storage.NewCorruptObjError(key, unreadable)
}

// maxUnreadable bounds the corrupt objects that one LIST reports.
const maxUnreadable = 100

// unreadableList collects the corrupt objects of a LIST.
type unreadableList struct {
	keys    []string
	errs    []error
	tooMany bool
}

// add adds the error of an object. It returns false if the LIST must end, because it has
// collected enough objects or the error is of another kind.
func (l *unreadableList) add(key string, err error) bool {
	var unreadable *unreadableError
	if !errors.As(err, &unreadable) {
		return false
	}
	if len(l.errs) >= maxUnreadable {
		l.tooMany = true
		return false
	}
	l.keys = append(l.keys, key)
	l.errs = append(l.errs, storage.NewCorruptObjError(key, unreadable))
	return true
}

// status returns the response to a LIST with corrupt objects.
func (l *unreadableList) status(gr schema.GroupResource) error {
	causes := make([]metav1.StatusCause, 0, len(l.errs)+1)
	for i, err := range l.errs {
		causes = append(causes, metav1.StatusCause{
			Type:    metav1.CauseTypeUnexpectedServerResponse,
			Field:   l.keys[i],
			Message: err.Error(),
		})
	}
	if l.tooMany {
		causes = append(causes, metav1.StatusCause{
			Type:    metav1.CauseTypeTooMany,
			Message: "too many errors, the list is truncated",
		})
	}
	return storeReadError(fmt.Sprintf("failed to read one or more %s from the storage", gr), &metav1.StatusDetails{
		Group:  gr.Group,
		Kind:   gr.Resource,
		Name:   "list",
		Causes: causes,
	})
}

// deletedUnreadable returns the error of a watch at the deletion of a corrupt object.
func deletedUnreadable(err error) error {
	return storeReadError("saw a DELETED event, but object data is corrupt - "+err.Error(), nil)
}

func storeReadError(message string, details *metav1.StatusDetails) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status:  metav1.StatusFailure,
		Code:    500,
		Reason:  metav1.StatusReasonStoreReadError,
		Message: message,
		Details: details,
	}}
}
