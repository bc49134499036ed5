package core

import (
	corev1 "k8s.io/api/core/v1"

	"triune.dev/shared/program/options"
)

// trim is the cache.TransformFunc of core's informers. They store all pods and nodes for the
// node authorizer, for admission plugins and for tokens bound to them. trim drops the fields
// that none of these reads: managed fields, half of the other fields of pods, and the image
// names of nodes. It changes obj, which no one else has at that time.
//
// Pods are read by the node authorizer (node, service account, volumes, resource claims,
// secrets and config maps of containers), NodeRestriction (node, UID, service account),
// PodSecurity (fields of the Pod Security Standards, owners, runtime class) and bound
// tokens (UID, times of deletion).
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
		// EphemeralContainerCommon has the fields of Container.
		common := corev1.Container(spec.EphemeralContainers[i].EphemeralContainerCommon)
		trimContainer(&common)
		spec.EphemeralContainers[i].EphemeralContainerCommon = corev1.EphemeralContainerCommon(common)
	}
}

func trimContainer(c *corev1.Container) {
	c.Command, c.Args, c.WorkingDir, c.TerminationMessagePath = nil, nil, "", ""
	c.Resources, c.ResizePolicy, c.VolumeMounts, c.VolumeDevices = corev1.ResourceRequirements{}, nil, nil, nil
	var references []corev1.EnvVar
	for _, env := range c.Env {
		if env.ValueFrom != nil {
			references = append(references, corev1.EnvVar{ValueFrom: env.ValueFrom})
		}
	}
	c.Env = references
}
