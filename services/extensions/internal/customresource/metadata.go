package customresource

import "time"

// wellFormed reports whether decoding metadata into metav1.ObjectMeta and encoding it again
// returns it unchanged. Doing that would be much slower. It covers the fields that nearly
// all objects have; false may be wrong.
func wellFormed(metadata map[string]any) bool {
	for key, value := range metadata {
		if !formInMetadata(key).matches(value) {
			return false
		}
	}
	return true
}

// metadataFacts records which fields were present in metadata that was read.
type metadataFacts struct{ generation, resourceVersion bool }

// metadata reads metadata and reports whether it is well-formed.
func (r *reader) metadata(facts *metadataFacts) bool {
	members := r.object()
	for members.next() {
		switch members.key {
		case "generation":
			facts.generation = true
		case "resourceVersion":
			facts.resourceVersion = true
		}
		if !r.readForm(formInMetadata(members.key)) {
			return false
		}
	}
	return members.end()
}

// form is the form that a value in metadata must have.
type form uint8

const (
	unknownForm form = iota
	textForm         // not empty, since the encoder omits empty texts
	anyTextForm
	timeForm // in UTC and whole seconds, as the encoder writes it
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
	// fieldsForm consists of maps of maps.
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

// ownerTexts is the number of texts of an owner reference, which are encoded even if empty.
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

// matches reports whether a decoded value has the form.
func (f form) matches(value any) bool {
	switch v := value.(type) {
	case string:
		return f == anyTextForm || f == textForm && v != "" || f == timeForm && isTimestamp(v)
	case int64:
		return f == integerForm || f == countForm && v != 0
	case bool:
		return f == booleanForm
	case map[string]any:
		return f.matchesMap(v)
	case []any:
		element := f.element()
		for _, e := range v {
			if !element.matches(e) {
				return false
			}
		}
		return element != unknownForm && len(v) > 0
	}
	return false
}

func (f form) matchesMap(m map[string]any) bool {
	mandatory := 0
	for key, value := range m {
		member := f.member(key)
		if !member.matches(value) {
			return false
		}
		if member == anyTextForm {
			mandatory++
		}
	}
	return f.validMap(len(m), mandatory)
}

// readForm reads a value and reports whether it has the form.
func (r *reader) readForm(f form) bool {
	switch r.peek() {
	case '"':
		raw, _, ok := r.str()
		return ok && (f == anyTextForm || f == textForm && raw != "" || f == timeForm && isTimestamp(raw))
	case '{':
		return r.readMap(f)
	case '[':
		element, elements := f.element(), r.list()
		for elements.next() {
			if !r.readForm(element) {
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

func (r *reader) readMap(f form) bool {
	mandatory := 0
	members := r.object()
	for members.next() {
		member := f.member(members.key)
		if !r.readForm(member) {
			return false
		}
		if member == anyTextForm {
			mandatory++
		}
	}
	return members.end() && f.validMap(members.count, mandatory)
}

// member returns the form of the member key of a map of form f.
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

// element returns the form of the elements of a list of form f.
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

// validMap reports whether a map of form f may have that many members, mandatory of which
// are texts that may be empty.
func (f form) validMap(members, mandatory int) bool {
	switch f {
	case textsForm:
		return members > 0
	case ownerForm:
		return mandatory == ownerTexts
	}
	return f == managerForm || f == fieldsForm
}
