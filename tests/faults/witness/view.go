package witness

import (
	"fmt"
	"net/url"
	"strings"
)

// View is the selection of a watcher: one namespace or all, and config maps with some labels or
// all.
type View struct {
	Namespace string // empty for all
	// In selects config maps whose label has one of these values; empty for all.
	In []int
	// Not selects config maps whose label has another value; nil for all.
	Not *int
}

func (v View) selects(shard int) bool {
	if v.Not != nil && shard == *v.Not {
		return false
	}
	for _, s := range v.In {
		if s == shard {
			return true
		}
	}
	return len(v.In) == 0
}

func value(shard int) string { return fmt.Sprintf("s%d", shard) }

// selector returns the query parameter.
func (v View) selector() string {
	var terms []string
	if len(v.In) == 1 {
		terms = append(terms, Label+"="+value(v.In[0]))
	} else if len(v.In) > 1 {
		var values []string
		for _, s := range v.In {
			values = append(values, value(s))
		}
		terms = append(terms, Label+" in ("+strings.Join(values, ",")+")")
	}
	if v.Not != nil {
		terms = append(terms, Label+"!="+value(*v.Not))
	}
	return strings.Join(terms, ",")
}

// path returns the path of the collection with a query.
func (v View) path(query url.Values) string {
	path := "/api/v1/configmaps"
	if v.Namespace != "" {
		path = "/api/v1/namespaces/" + v.Namespace + "/configmaps"
	}
	if s := v.selector(); s != "" {
		query.Set("labelSelector", s)
	}
	return path + "?" + query.Encode()
}

// String formats a view for people.
func (v View) String() string {
	s := v.Namespace
	if s == "" {
		s = "all namespaces"
	}
	if sel := v.selector(); sel != "" {
		s += " where " + sel
	}
	return s
}
