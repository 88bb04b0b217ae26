package adapter

import (
	"fmt"
	"strings"
)

// Examples are one specification per kind, a line each.
func Examples() []string {
	var lines []string
	for _, k := range kinds {
		lines = append(lines, k.example)
	}
	return lines
}

// Markdown describes every kind and field, below a heading of the third level.
func Markdown() string {
	var b strings.Builder
	for _, k := range kinds {
		fmt.Fprintf(&b, "#### Type `%s`", k.kind)
		for i, alias := range k.aliases {
			fmt.Fprintf(&b, "%s `%s`", map[bool]string{true: ", in LMCache", false: ","}[i == 0], alias)
		}
		fmt.Fprintf(&b, "\n\n%s\n\n```json\n%s\n```\n\n", k.doc, k.example)
		writeFields(&b, k.fields)
	}
	b.WriteString("#### Fields of every type\n\n")
	writeFields(&b, common)
	return strings.TrimSuffix(b.String(), "\n")
}

func writeFields(b *strings.Builder, fields []field) {
	b.WriteString("| field | values | what it does |\n| --- | --- | --- |\n")
	for _, f := range fields {
		name := "`" + f.name + "`"
		for _, alias := range f.aliases {
			name += ", `" + alias + "`"
		}
		doc := f.doc
		if f.without != "" {
			doc += " Accepted with a warning: " + f.without + "."
		}
		fmt.Fprintf(b, "| %s | %s | %s |\n", name, strings.ReplaceAll(f.values, "|", `\|`), strings.ReplaceAll(doc, "|", `\|`))
	}
	b.WriteString("\n")
}
