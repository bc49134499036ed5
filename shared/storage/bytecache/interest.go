package bytecache

// Interest selects the changes that wake a sleeping cursor; the zero value selects every
// change. It limits only what wakes the cursor: a cursor that is awake reads every change.
type Interest struct {
	// Key is the key of one object or, if it ends with a slash, a prefix of keys.
	Key string
	// Field and Value select the objects that have the value in a selectable field of the
	// cache, before or after the change. An object without the field has the value "".
	// Field and Key exclude each other.
	Field, Value string
}
