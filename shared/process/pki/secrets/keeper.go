package secrets

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// attempts bounds the number of plans made because of concurrent writers.
const attempts = 5

// Client reads and writes the Secrets of one namespace. Those of client-go do.
type Client interface {
	Get(ctx context.Context, name string, o metav1.GetOptions) (*corev1.Secret, error)
	Create(ctx context.Context, secret *corev1.Secret, o metav1.CreateOptions) (*corev1.Secret, error)
	Update(ctx context.Context, secret *corev1.Secret, o metav1.UpdateOptions) (*corev1.Secret, error)
	Delete(ctx context.Context, name string, o metav1.DeleteOptions) error
}

// Keeper keeps the Secrets of a list. Its methods may be called by several goroutines
// and processes at once: a Secret that somebody else has written meanwhile is read
// again, never overwritten.
type Keeper struct {
	Client Client
	List   *List
	// Rotation is the step that authorities are to be at.
	Rotation Rotation
	// Now is the clock; nil stands for [time.Now].
	Now func() time.Time
	// Changed, if not nil, is called after each write, with its reason.
	Changed func(secret, reason string)
}

// Ensure makes the Secrets hold what the list says. It reads each by its name. The error
// names every Secret that somebody has to repair. All other Secrets are as the list says
// then, unless the server refused a request.
func (k *Keeper) Ensure(ctx context.Context) error {
	for range attempts {
		have, err := k.read(ctx)
		if err != nil {
			return err
		}
		p := newPlan(k.List, have, k.now(), k.Rotation)
		again, err := k.write(ctx, p.changes)
		if err != nil {
			return errors.Join(append(p.problems, err)...)
		}
		if !again {
			return errors.Join(p.problems...)
		}
	}
	return errors.New("somebody else writes the Secrets all the time")
}

// Delete deletes all Secrets of the list that there are.
func (k *Keeper) Delete(ctx context.Context) error {
	for _, name := range k.List.names() {
		err := k.Client.Delete(ctx, name, metav1.DeleteOptions{})
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return fmt.Errorf("delete Secret %s: %w", name, err)
		}
		k.changed(name, "deleted")
	}
	return nil
}

func (k *Keeper) read(ctx context.Context) (map[string]*corev1.Secret, error) {
	have := map[string]*corev1.Secret{}
	for _, name := range k.List.names() {
		s, err := k.Client.Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read Secret %s: %w", name, err)
		}
		have[name] = s
	}
	return have, nil
}

// write makes the changes in their order. It stops and reports again when a Secret has
// changed since it was read.
func (k *Keeper) write(ctx context.Context, changes []change) (again bool, err error) {
	for _, c := range changes {
		if c.secret.ResourceVersion == "" {
			_, err = k.Client.Create(ctx, c.secret, metav1.CreateOptions{})
			again = apierrors.IsAlreadyExists(err)
		} else {
			_, err = k.Client.Update(ctx, c.secret, metav1.UpdateOptions{})
			again = apierrors.IsConflict(err) || apierrors.IsNotFound(err)
		}
		if again {
			return true, nil
		}
		if err != nil {
			return false, fmt.Errorf("write Secret %s: %w", c.secret.Name, err)
		}
		k.changed(c.secret.Name, c.reason)
	}
	return false, nil
}

func (k *Keeper) now() time.Time {
	if k.Now == nil {
		return time.Now()
	}
	return k.Now()
}

func (k *Keeper) changed(secret, reason string) {
	if k.Changed != nil {
		k.Changed(secret, reason)
	}
}
