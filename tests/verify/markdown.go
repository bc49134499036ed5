package verify

import (
	"regexp"
	"strings"
	"unicode"
)

// link is a reference in a Markdown document.
type link struct {
	line   int
	target string
}

// document has the relevant parts of a Markdown file.
type document struct {
	anchors map[string]bool
	links   []link
	// targets are the make targets that the document names.
	targets []link
}

var (
	inlineLink = regexp.MustCompile(`\]\(([^()\s]+)(?:\s+"[^"]*")?\)`)
	definition = regexp.MustCompile(`^\s{0,3}\[[^\]]+\]:\s+(\S+)`)
	heading    = regexp.MustCompile(`^#{1,6}\s+(.*?)\s*#*$`)
	code       = regexp.MustCompile("`[^`]*`")
	makeTarget = regexp.MustCompile(`\bmake ((?:[A-Z_]+=\S+ )*)([a-z][a-z0-9-]*)`)
)

// parseMarkdown finds headings and links, except for those inside code.
func parseMarkdown(text string) document {
	d := document{anchors: map[string]bool{}}
	fenced := false
	number := 0
	for line := range strings.Lines(text) {
		number++
		line = strings.TrimRight(line, "\n")
		if strings.HasPrefix(strings.TrimSpace(line), "```") {
			fenced = !fenced
			continue
		}
		if fenced {
			d.addTargets(number, line)
			continue
		}
		for _, span := range code.FindAllString(line, -1) {
			d.addTargets(number, span)
		}
		if m := heading.FindStringSubmatch(line); m != nil {
			d.anchors[anchor(m[1])] = true
		}
		line = code.ReplaceAllString(line, "")
		for _, m := range inlineLink.FindAllStringSubmatch(line, -1) {
			d.links = append(d.links, link{number, m[1]})
		}
		if m := definition.FindStringSubmatch(line); m != nil {
			d.links = append(d.links, link{number, m[1]})
		}
	}
	return d
}

func (d *document) addTargets(line int, text string) {
	text, _, _ = strings.Cut(text, "#") // a comment in a shell line
	for _, m := range makeTarget.FindAllStringSubmatch(text, -1) {
		d.targets = append(d.targets, link{line, m[2]})
	}
}

// anchor returns GitHub's fragment for a heading: lower case, dashes for spaces, no
// punctuation.
func anchor(heading string) string {
	var b strings.Builder
	for _, r := range strings.ToLower(strings.ReplaceAll(heading, "`", "")) {
		switch {
		case r == ' ' || r == '-':
			b.WriteRune('-')
		case unicode.IsLetter(r) || unicode.IsDigit(r) || r == '_':
			b.WriteRune(r)
		}
	}
	return b.String()
}
