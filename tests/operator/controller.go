package operator

import (
	"context"
	"fmt"
	"strconv"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"
)

const (
	finalizer    = "operator.example.com/switch"
	conditionLit = "Lit"
	colorIndex   = "spec.color"
)

// Operator makes a ConfigMap for each lamp, and tells in its status that it is lit.
type Operator struct {
	client   client.Client
	recorder events.EventRecorder

	mu       sync.Mutex
	released []string // lamps whose finalizer has run; guarded by mu
}

// Add adds the controller, its index and its webhooks to a manager. Several operators may run in
// a process.
func (o *Operator) Add(m manager.Manager) error {
	o.client, o.recorder = m.GetClient(), m.GetEventRecorder("lamps")
	if err := m.GetFieldIndexer().IndexField(context.Background(), &Lamp{}, colorIndex, func(object client.Object) []string {
		return []string{object.(*Lamp).Spec.Color}
	}); err != nil {
		return fmt.Errorf("index lamps: %w", err)
	}
	anyName := true
	if err := ctrl.NewControllerManagedBy(m).For(&Lamp{}).Owns(&corev1.ConfigMap{}).
		WithOptions(controller.Options{SkipNameValidation: &anyName, MaxConcurrentReconciles: 4}).Complete(o); err != nil {
		return fmt.Errorf("controller of lamps: %w", err)
	}
	if err := ctrl.NewWebhookManagedBy(m, &Lamp{}).WithDefaulter(webhooks{}).WithValidator(webhooks{}).Complete(); err != nil {
		return fmt.Errorf("webhooks of lamps: %w", err)
	}
	return nil
}

// Reconcile implements reconcile.Reconciler.
func (o *Operator) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	var lamp Lamp
	if err := o.client.Get(ctx, request.NamespacedName, &lamp); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if !lamp.DeletionTimestamp.IsZero() {
		return ctrl.Result{}, o.release(ctx, &lamp)
	}
	if !controllerutil.ContainsFinalizer(&lamp, finalizer) {
		before := lamp.DeepCopyObject().(client.Object)
		controllerutil.AddFinalizer(&lamp, finalizer)
		if err := o.client.Patch(ctx, &lamp, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})); err != nil {
			return ctrl.Result{}, ignoreStale(err)
		}
	}
	config := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: lamp.Namespace, Name: "lamp-" + lamp.Name}}
	if _, err := controllerutil.CreateOrUpdate(ctx, o.client, config, func() error {
		config.Data = map[string]string{"percent": strconv.Itoa(lamp.Spec.Percent), "color": lamp.Spec.Color}
		return controllerutil.SetControllerReference(&lamp, config, o.client.Scheme())
	}); err != nil {
		return ctrl.Result{}, ignoreStale(err)
	}
	if lamp.lit() {
		return ctrl.Result{}, nil
	}
	lamp.Status.ObservedGeneration = lamp.Generation
	changed := meta.SetStatusCondition(&lamp.Status.Conditions, metav1.Condition{
		Type: conditionLit, Status: metav1.ConditionTrue, Reason: "Switched", ObservedGeneration: lamp.Generation,
	})
	if err := o.client.Status().Update(ctx, &lamp); err != nil {
		return ctrl.Result{}, ignoreStale(err)
	}
	if changed && lamp.Generation == 1 {
		o.recorder.Eventf(&lamp, nil, corev1.EventTypeNormal, "Switched", "Switch", "the lamp shines %s", lamp.Spec.Color)
	}
	return ctrl.Result{}, nil
}

// release runs the finalizer.
func (o *Operator) release(ctx context.Context, lamp *Lamp) error {
	if !controllerutil.RemoveFinalizer(lamp, finalizer) {
		return nil
	}
	if err := o.client.Update(ctx, lamp); err != nil {
		return ignoreStale(client.IgnoreNotFound(err))
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.released = append(o.released, lamp.Name)
	return nil
}

// ignoreStale drops the error of a write to what the cache did not know yet: its event will call
// the controller again.
func ignoreStale(err error) error {
	if apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

// webhooks are those of v2 for admission.
type webhooks struct{}

// Default implements admission.Defaulter.
func (webhooks) Default(_ context.Context, lamp *Lamp) error {
	if lamp.Spec.Color == "" {
		lamp.Spec.Color = "white"
	}
	return nil
}

// ValidateCreate implements admission.Validator.
func (w webhooks) ValidateCreate(_ context.Context, lamp *Lamp) (admission.Warnings, error) {
	return w.validate(lamp)
}

// ValidateUpdate implements admission.Validator.
func (w webhooks) ValidateUpdate(_ context.Context, _, lamp *Lamp) (admission.Warnings, error) {
	return w.validate(lamp)
}

// ValidateDelete implements admission.Validator.
func (webhooks) ValidateDelete(_ context.Context, lamp *Lamp) (admission.Warnings, error) {
	if lamp.Labels["keep"] != "" {
		return nil, fmt.Errorf("lamp %s is to be kept", lamp.Name)
	}
	return nil, nil
}

func (webhooks) validate(lamp *Lamp) (warnings admission.Warnings, err error) {
	if lamp.Spec.Percent > 90 {
		warnings = append(warnings, "spec.percent: a lamp above 90 does not last")
	}
	if lamp.Spec.Color == "black" {
		return warnings, apierrors.NewInvalid(hubVersion.WithKind("Lamp").GroupKind(), lamp.Name, field.ErrorList{
			field.NotSupported(field.NewPath("spec", "color"), lamp.Spec.Color, []string{"red", "white"}),
		})
	}
	return warnings, nil
}
