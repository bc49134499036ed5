package customresource

import "time"

// wellFormed tells of an object's metadata that decoding it into metav1.ObjectMeta and
// encoding that gives it back as it is, which is much dearer to find out by doing it.
// It knows what nearly all objects have; false may mean that it does not know.
func wellFormed(metadata map[string]any) bool {
	for key, value := range metadata {
		if !formInMetadata(key).of(value) {
			return false
		}
	}
	return true
}

// metadataFacts are what else there is to know of metadata that was read.
type metadataFacts struct{ generation, resourceVersion bool }

// metadata is wellFormed for metadata that is still to be read.
func (r *reader) metadata(facts *metadataFacts) bool {
	members := r.object()
	for members.next() {
		switch members.key {
		case "generation":
			facts.generation = true
		case "resourceVersion":
			facts.resourceVersion = true
		}
		if !r.form(formInMetadata(members.key)) {
			return false
		}
	}
	return members.end()
}

// form is what a value in metadata must be.
type form uint8

const (
	unknownForm form = iota
	textForm         // not empty: that is left out when it is encoded
	anyTextForm
	timeForm // in UTC and whole seconds, as they are written
	integerForm
	countForm // not 0
	booleanForm
	textsForm // a map, not empty
	// Lists, not empty, and their elements.
	namesForm
	ownersForm
	ownerForm
	managersForm
	managerForm
	// fieldsForm is nothing but maps in maps.
	fieldsForm
)

func formInMetadata(key string) form {
	switch key {
	case "name", "generateName", "namespace", "selfLink", "uid", "resourceVersion":
		return textForm
	case "creationTimestamp", "deletionTimestamp":
		return timeForm
	case "generation":
		return countForm
	case "deletionGracePeriodSeconds":
		return integerForm
	case "labels", "annotations":
		return textsForm
	case "finalizers":
		return namesForm
	case "ownerReferences":
		return ownersForm
	case "managedFields":
		return managersForm
	}
	return unknownForm
}

func formInOwner(key string) form {
	switch key {
	case "apiVersion", "kind", "name", "uid":
		return anyTextForm
	case "controller", "blockOwnerDeletion":
		return booleanForm
	}
	return unknownForm
}

// ownerTexts: those of an owner are encoded even where they are empty.
const ownerTexts = 4

func formInManager(key string) form {
	switch key {
	case "manager", "operation", "apiVersion", "fieldsType", "subresource":
		return textForm
	case "time":
		return timeForm
	case "fieldsV1":
		return fieldsForm
	}
	return unknownForm
}

func isTimestamp(text string) bool {
	const form = "2006-01-02T15:04:05Z"
	if len(text) != len(form) || text[len(form)-1] != 'Z' {
		return false
	}
	t, err := time.Parse(time.RFC3339, text)
	return err == nil && !t.IsZero()
}

// of tells whether a decoded value has the form.
func (f form) of(value any) bool {
	switch v := value.(type) {
	case string:
		return f == anyTextForm || f == textForm && v != "" || f == timeForm && isTimestamp(v)
	case int64:
		return f == integerForm || f == countForm && v != 0
	case bool:
		return f == booleanForm
	case map[string]any:
		return f.ofMap(v)
	case []any:
		element := f.element()
		for _, e := range v {
			if !element.of(e) {
				return false
			}
		}
		return element != unknownForm && len(v) > 0
	}
	return false
}

func (f form) ofMap(m map[string]any) bool {
	mandatory := 0
	for key, value := range m {
		member := f.member(key)
		if !member.of(value) {
			return false
		}
		if member == anyTextForm {
			mandatory++
		}
	}
	return f.isMap(len(m), mandatory)
}

// form is of for a value that is still to be read.
func (r *reader) form(f form) bool {
	switch r.peek() {
	case '"':
		raw, _, ok := r.str()
		return ok && (f == anyTextForm || f == textForm && raw != "" || f == timeForm && isTimestamp(raw))
	case '{':
		return r.formMap(f)
	case '[':
		element, elements := f.element(), r.list()
		for elements.next() {
			if !r.form(element) {
				return false
			}
		}
		return elements.end() && element != unknownForm && elements.count > 0
	case 't', 'f':
		return f == booleanForm && r.boolean()
	default:
		n, ok := r.integer()
		return ok && (f == integerForm || f == countForm && n != 0)
	}
}

func (r *reader) formMap(f form) bool {
	mandatory := 0
	members := r.object()
	for members.next() {
		member := f.member(members.key)
		if !r.form(member) {
			return false
		}
		if member == anyTextForm {
			mandatory++
		}
	}
	return members.end() && f.isMap(members.count, mandatory)
}

// member is what a member of a map of this form must be.
func (f form) member(key string) form {
	switch f {
	case textsForm:
		return anyTextForm
	case ownerForm:
		return formInOwner(key)
	case managerForm:
		return formInManager(key)
	case fieldsForm:
		return fieldsForm
	}
	return unknownForm
}

// element is what an element of a list of this form must be.
func (f form) element() form {
	switch f {
	case namesForm:
		return anyTextForm
	case ownersForm:
		return ownerForm
	case managersForm:
		return managerForm
	}
	return unknownForm
}

// isMap tells whether a map of this form may have so many members, mandatory of which
// are texts that may be empty.
func (f form) isMap(members, mandatory int) bool {
	switch f {
	case textsForm:
		return members > 0
	case ownerForm:
		return mandatory == ownerTexts
	}
	return f == managerForm || f == fieldsForm
}
