package customresource

import "time"

// wellFormed tells of an object's metadata that decoding it into metav1.ObjectMeta and
// encoding that gives it back as it is, which is much dearer to find out by doing it.
// It knows what nearly all objects have; false may mean that it does not know.
func wellFormed(metadata map[string]any) bool {
	for key, value := range metadata {
		if !wellFormedField(key, value) {
			return false
		}
	}
	return true
}

func wellFormedField(key string, value any) bool {
	switch key {
	case "name", "generateName", "namespace", "selfLink", "uid", "resourceVersion":
		return isText(value)
	case "creationTimestamp", "deletionTimestamp":
		return isTime(value)
	case "generation":
		n, ok := value.(int64)
		return ok && n != 0
	case "deletionGracePeriodSeconds":
		_, ok := value.(int64)
		return ok
	case "labels", "annotations":
		return isTexts(value)
	case "finalizers":
		return isList(value, isString)
	case "ownerReferences":
		return isList(value, isOwner)
	case "managedFields":
		return isList(value, isManager)
	}
	return false
}

// isText: an empty text is left out when it is encoded.
func isText(value any) bool {
	text, ok := value.(string)
	return ok && text != ""
}

func isString(value any) bool {
	_, ok := value.(string)
	return ok
}

func isTexts(value any) bool {
	texts, ok := value.(map[string]any)
	if !ok || len(texts) == 0 {
		return false
	}
	for _, text := range texts {
		if !isString(text) {
			return false
		}
	}
	return true
}

// isTime: times are written in UTC and whole seconds.
func isTime(value any) bool {
	const form = "2006-01-02T15:04:05Z"
	text, ok := value.(string)
	if !ok || len(text) != len(form) || text[len(form)-1] != 'Z' {
		return false
	}
	t, err := time.Parse(time.RFC3339, text)
	return err == nil && !t.IsZero()
}

func isList(value any, isElement func(any) bool) bool {
	list, ok := value.([]any)
	if !ok || len(list) == 0 {
		return false
	}
	for _, element := range list {
		if !isElement(element) {
			return false
		}
	}
	return true
}

func isOwner(value any) bool {
	owner, ok := value.(map[string]any)
	if !ok {
		return false
	}
	texts := 0
	for key, value := range owner {
		switch key {
		case "apiVersion", "kind", "name", "uid":
			texts++
			if !isString(value) {
				return false
			}
		case "controller", "blockOwnerDeletion":
			if _, ok := value.(bool); !ok {
				return false
			}
		default:
			return false
		}
	}
	return texts == 4 // they are encoded even where they are empty
}

func isManager(value any) bool {
	manager, ok := value.(map[string]any)
	if !ok {
		return false
	}
	for key, value := range manager {
		switch key {
		case "manager", "operation", "apiVersion", "fieldsType", "subresource":
			ok = isText(value)
		case "time":
			ok = isTime(value)
		case "fieldsV1":
			ok = isFields(value)
		default:
			ok = false
		}
		if !ok {
			return false
		}
	}
	return true
}

// isFields: a set of fields is nothing but maps in maps.
func isFields(value any) bool {
	fields, ok := value.(map[string]any)
	if !ok {
		return false
	}
	for _, below := range fields {
		if !isFields(below) {
			return false
		}
	}
	return true
}
