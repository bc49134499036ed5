package command

import (
	"fmt"
	"net"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
)

// nameFlags rewrites the problems in err so that each names the flag it is about and
// the value of that flag. The libraries of Kubernetes find most mistakes in flags, but
// their errors name the flag, or the value, or neither.
func nameFlags(err error, flags *pflag.FlagSet) error {
	if err == nil {
		return nil
	}
	var problems []error
	for _, problem := range flatten(err) {
		problems = append(problems, nameFlag(problem, flags))
	}
	return utilerrors.NewAggregate(problems)
}

// nameFlag puts the flag that problem is about, and its value, in front of problem. It
// chooses among the flags that were set: the one whose name problem mentions, or else
// the one whose value it mentions; the longer mention wins. A problem that names both
// already, or mentions no flag, is returned unchanged.
func nameFlag(problem error, flags *pflag.FlagSet) error {
	text := problem.Error()
	rest := text // text without flags that it names with their values
	flags.Visit(func(f *pflag.Flag) {
		for _, value := range flagValues(f) {
			rest = strings.ReplaceAll(rest, "--"+f.Name+"="+value, "")
		}
	})
	var best *pflag.Flag
	var bestValue string
	var bestScore int
	flags.Visit(func(f *pflag.Flag) {
		score := 0
		if hasWord(rest, f.Name) {
			score = 1000 + len(f.Name)
		}
		value := f.Value.String()
		for _, element := range flagValues(f) {
			key, _, _ := strings.Cut(element, "=")
			for _, mention := range []string{element, key} {
				if isDistinctive(mention) && strings.Contains(rest, mention) {
					score, value = score+len(mention), element
					break
				}
			}
		}
		if score > bestScore {
			best, bestValue, bestScore = f, value, score
		}
	})
	if best == nil {
		return problem
	}
	bestValue = strings.Trim(bestValue, "[]")
	if strings.Contains(text, "--"+best.Name) && strings.Contains(rest, bestValue) {
		return problem
	}
	// An error of opening the listener begins with the flags of its address, whatever
	// the problem is.
	if flag, reason, ok := strings.Cut(text, ": "); ok && strings.HasPrefix(flag, "--") && !strings.Contains(flag, " ") {
		text = reason
	}
	return fmt.Errorf("--%s=%s: %s", best.Name, bestValue, text)
}

// flagValues returns the values of a flag, of which a list has several.
func flagValues(f *pflag.Flag) []string {
	if several, ok := f.Value.(pflag.SliceValue); ok {
		return several.GetSlice()
	}
	return strings.Split(f.Value.String(), ",")
}

// isDistinctive reports whether a problem that mentions the value is probably about its
// flag. Numbers, booleans, IP addresses and short words occur everywhere.
func isDistinctive(value string) bool {
	if _, err := strconv.ParseFloat(value, 64); err == nil {
		return false
	}
	if _, err := strconv.ParseBool(value); err == nil {
		return false
	}
	return len(value) >= 4 && net.ParseIP(value) == nil
}

// hasWord reports whether text contains name as a word of its own. A name without a
// dash, such as v, counts only after two dashes.
func hasWord(text, name string) bool {
	inWord := func(c byte) bool { return c == '-' || c >= 'a' && c <= 'z' || c >= '0' && c <= '9' }
	for i := 0; ; {
		at := strings.Index(text[i:], name)
		if at < 0 {
			return false
		}
		begin, end := i+at, i+at+len(name)
		before := strings.TrimSuffix(text[:begin], "--")
		if (before == "" || !inWord(before[len(before)-1])) && (end == len(text) || !inWord(text[end])) && (strings.Contains(name, "-") || before != text[:begin]) {
			return true
		}
		i = begin + 1
	}
}
