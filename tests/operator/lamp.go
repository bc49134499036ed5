package operator

import (
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/conversion"
)

// The versions of lamps. v2 is stored.
var (
	oldVersion = schema.GroupVersion{Group: "operator.example.com", Version: "v1"}
	hubVersion = schema.GroupVersion{Group: "operator.example.com", Version: "v2"}
)

// colorAnnotation keeps in v1 what only v2 has a field for.
const colorAnnotation = "operator.example.com/color"

// Lamp is a lamp in version v2.
type Lamp struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   LampSpec   `json:"spec"`
	Status LampStatus `json:"status,omitempty"`
}

// LampSpec is what is wanted of a lamp.
type LampSpec struct {
	// Percent is the brightness, from 0 to 100.
	Percent int    `json:"percent"`
	Color   string `json:"color,omitempty"`
}

// LampStatus is what has become of a lamp.
type LampStatus struct {
	ObservedGeneration int64              `json:"observedGeneration,omitempty"`
	Conditions         []metav1.Condition `json:"conditions,omitempty"`
}

// LampList is a list of lamps in version v2.
type LampList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []Lamp `json:"items"`
}

// OldLamp is a lamp in version v1.
type OldLamp struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   OldLampSpec `json:"spec"`
	Status LampStatus  `json:"status,omitempty"`
}

// OldLampSpec is what is wanted of a lamp, in version v1.
type OldLampSpec struct {
	Brightness int `json:"brightness"`
}

// OldLampList is a list of lamps in version v1.
type OldLampList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []OldLamp `json:"items"`
}

// Hub marks v2 as the version that others are converted to.
func (*Lamp) Hub() {}

// ConvertTo converts to v2.
func (l *OldLamp) ConvertTo(hub conversion.Hub) error {
	lamp, ok := hub.(*Lamp)
	if !ok {
		return fmt.Errorf("%T is not a Lamp", hub)
	}
	l.ObjectMeta.DeepCopyInto(&lamp.ObjectMeta)
	lamp.Spec = LampSpec{Percent: l.Spec.Brightness, Color: l.Annotations[colorAnnotation]}
	delete(lamp.Annotations, colorAnnotation)
	lamp.Status = l.Status.copy()
	return nil
}

// ConvertFrom converts from v2.
func (l *OldLamp) ConvertFrom(hub conversion.Hub) error {
	lamp, ok := hub.(*Lamp)
	if !ok {
		return fmt.Errorf("%T is not a Lamp", hub)
	}
	lamp.ObjectMeta.DeepCopyInto(&l.ObjectMeta)
	l.Spec = OldLampSpec{Brightness: lamp.Spec.Percent}
	if lamp.Spec.Color != "" {
		metav1.SetMetaDataAnnotation(&l.ObjectMeta, colorAnnotation, lamp.Spec.Color)
	}
	l.Status = lamp.Status.copy()
	return nil
}

// lit reports whether the controller has done what the latest generation asks for.
func (l *Lamp) lit() bool {
	condition := meta.FindStatusCondition(l.Status.Conditions, conditionLit)
	return condition != nil && condition.Status == metav1.ConditionTrue && l.Status.ObservedGeneration == l.Generation
}

func (s LampStatus) copy() LampStatus {
	s.Conditions = append([]metav1.Condition(nil), s.Conditions...)
	return s
}

// DeepCopyObject implements runtime.Object.
func (l *Lamp) DeepCopyObject() runtime.Object {
	c := *l
	l.ObjectMeta.DeepCopyInto(&c.ObjectMeta)
	c.Status = l.Status.copy()
	return &c
}

// DeepCopyObject implements runtime.Object.
func (l *LampList) DeepCopyObject() runtime.Object {
	c := *l
	l.ListMeta.DeepCopyInto(&c.ListMeta)
	c.Items = make([]Lamp, len(l.Items))
	for i := range l.Items {
		c.Items[i] = *l.Items[i].DeepCopyObject().(*Lamp)
	}
	return &c
}

// DeepCopyObject implements runtime.Object.
func (l *OldLamp) DeepCopyObject() runtime.Object {
	c := *l
	l.ObjectMeta.DeepCopyInto(&c.ObjectMeta)
	c.Status = l.Status.copy()
	return &c
}

// DeepCopyObject implements runtime.Object.
func (l *OldLampList) DeepCopyObject() runtime.Object {
	c := *l
	l.ListMeta.DeepCopyInto(&c.ListMeta)
	c.Items = make([]OldLamp, len(l.Items))
	for i := range l.Items {
		c.Items[i] = *l.Items[i].DeepCopyObject().(*OldLamp)
	}
	return &c
}

// addLamps adds both versions to a scheme.
func addLamps(scheme *runtime.Scheme) {
	for version, objects := range map[schema.GroupVersion]map[string]runtime.Object{
		oldVersion: {"Lamp": &OldLamp{}, "LampList": &OldLampList{}},
		hubVersion: {"Lamp": &Lamp{}, "LampList": &LampList{}},
	} {
		for kind, object := range objects {
			scheme.AddKnownTypeWithName(version.WithKind(kind), object)
		}
		metav1.AddToGroupVersion(scheme, version)
	}
}
