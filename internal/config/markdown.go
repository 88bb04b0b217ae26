package config

import (
	"fmt"
	"strings"
)

// Markdown is docs/configuration.md.
func Markdown() string {
	var b strings.Builder
	b.WriteString(preamble)
	for _, group := range Groups() {
		fmt.Fprintf(&b, "\n## %s\n\n", group)
		if note := groupNotes[group]; note != "" {
			fmt.Fprintf(&b, "%s\n\n", note)
		}
		if group == GroupIgnored || group == GroupRefused {
			b.WriteString("| setting | why |\n| --- | --- |\n")
		} else {
			b.WriteString("| setting | values | default | what it does |\n| --- | --- | --- | --- |\n")
		}
		for _, s := range Table() {
			if s.Group == group {
				writeRow(&b, s)
			}
		}
	}
	return b.String()
}

const preamble = `# Configuration of ` + "`holdfast serve`" + `

<!-- Generated from the table in internal/config. To change it:
     go run ./cmd/holdfast config docs > docs/configuration.md -->

Each setting is a flag (` + "`--port 5555`" + `), an environment variable (` + "`HOLDFAST_PORT=5555`" + `: upper case, dashes
become underscores) and a key of the YAML file named by ` + "`--config`" + ` (` + "`port: 5555`" + `). A flag beats a variable, a
variable beats the file, the file beats the default. Unset or empty is the default.

Settings marked ° have the name and the default that ` + "`lmcache server`" + ` gives them; for these ` + "`LMCACHE_PORT`" + ` and so
on are accepted too and are weaker than ` + "`HOLDFAST_PORT`" + `. A bad size, width or timeout refuses to start and names the
setting, the value, the limit and the way out; settings marked † are tuning knobs, where a bad value is a warning and
the default is used. An unknown key in the file is an error.
`

var groupNotes = map[string]string{
	GroupIgnored: "Flags of `lmcache server` without a meaning here. They are accepted with a warning, so that an existing\ncommand line works.",
	GroupRefused: "Flags of `lmcache server` that promise something which is not there. The server does not start with them.",
}

func writeRow(b *strings.Builder, s Setting) {
	name := "`" + s.Name + "`"
	if s.hidden() {
		fmt.Fprintf(b, "| %s | %s |\n", name, cell(s.Doc))
		return
	}
	if s.LMCache {
		name += " °"
	}
	if s.Tuning {
		name += " †"
	}
	values := s.Limits()
	if values == "" {
		values = s.Kind()
	}
	if s.Unit != "" && !strings.Contains(values, s.Unit) {
		values += ", in " + s.Unit
	}
	def := "–"
	if s.Default != "" {
		def = "`" + s.Default + "`"
	}
	fmt.Fprintf(b, "| %s | %s | %s | %s |\n", name, cell(values), def, cell(s.Doc))
}

func cell(text string) string { return strings.ReplaceAll(text, "|", `\|`) }
