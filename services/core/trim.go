package core

import (
	corev1 "k8s.io/api/core/v1"

	"triune.dev/shared/program/options"
)

// trim is the transformation of core's own informers, which hold every pod and every
// node decoded for the node authorizer, for admission plugins and for tokens that are
// bound to one. It drops what none of them reads: managed fields of everything, of pods
// half of the rest, of nodes the names of their images. Informers call it before anybody
// else has the object.
//
// What reads a pod: the node authorizer (node, service account, volumes, resource claims,
// secrets and config maps that containers refer to), NodeRestriction (node, UID, service
// account), PodSecurity (what the Pod Security Standards restrict, owners, runtime class)
// and tokens (UID, times of deletion).
func trim(obj any) (any, error) {
	switch object := obj.(type) {
	case *corev1.Pod:
		trimPod(object)
	case *corev1.Node:
		object.Status.Images = nil
	}
	return options.DropManagedFields(obj)
}

func trimPod(pod *corev1.Pod) {
	delete(pod.Annotations, corev1.LastAppliedConfigAnnotation)
	pod.Status = corev1.PodStatus{
		Phase:                       pod.Status.Phase,
		ResourceClaimStatuses:       pod.Status.ResourceClaimStatuses,
		ExtendedResourceClaimStatus: pod.Status.ExtendedResourceClaimStatus,
	}
	spec := &pod.Spec
	spec.Affinity, spec.Tolerations, spec.TopologySpreadConstraints, spec.NodeSelector = nil, nil, nil, nil
	spec.ReadinessGates, spec.SchedulingGates, spec.HostAliases, spec.DNSConfig = nil, nil, nil, nil
	for i := range spec.InitContainers {
		trimContainer(&spec.InitContainers[i])
	}
	for i := range spec.Containers {
		trimContainer(&spec.Containers[i])
	}
	for i := range spec.EphemeralContainers {
		// The one is convertible to the other by its definition.
		common := corev1.Container(spec.EphemeralContainers[i].EphemeralContainerCommon)
		trimContainer(&common)
		spec.EphemeralContainers[i].EphemeralContainerCommon = corev1.EphemeralContainerCommon(common)
	}
}

func trimContainer(c *corev1.Container) {
	c.Command, c.Args, c.WorkingDir, c.TerminationMessagePath = nil, nil, "", ""
	c.Resources, c.ResizePolicy, c.VolumeMounts, c.VolumeDevices = corev1.ResourceRequirements{}, nil, nil, nil
	var kept []corev1.EnvVar
	for _, env := range c.Env {
		if env.ValueFrom != nil {
			kept = append(kept, corev1.EnvVar{ValueFrom: env.ValueFrom})
		}
	}
	c.Env = kept
}
