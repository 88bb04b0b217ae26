package config

import (
	"fmt"
	"strings"

	"github.com/holdfast-kv/holdfast/internal/tier/adapter"
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
		if group == GroupTiers {
			b.WriteString(tiersText + adapter.Markdown())
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

Settings marked ° have the name that ` + "`lmcache server`" + ` gives them, and its default unless the row says otherwise; for these ` + "`LMCACHE_PORT`" + ` and so
on are accepted too and are weaker than ` + "`HOLDFAST_PORT`" + `. A bad size, width or timeout refuses to start and names the
setting, the value, the limit and the way out; settings marked † are tuning knobs, where a bad value is a warning and
the default is used. An unknown key in the file is an error, and so is a bad value there that a flag or a variable overrides.
`

const tiersText = `
### What ` + "`l2-adapter`" + ` takes

A JSON object per tier. On the command line the flag is repeated, a variable has one object or a list of them, and the
YAML file has a list, of objects or of such text:

` + "```yaml" + `
disk-path: /var/cache/holdfast
disk-size-gb: 500
l2-adapter:
  - type: valkey
    addresses: [cache-1:6379, cache-2:6379, cache-3:6379]
    password_env: CACHE_PASSWORD
  - type: s3
    endpoint: https://s3.eu-central-1.amazonaws.com
    bucket: kv-cache
` + "```" + `

A store is asked for what those before it lack, and all of them get what is stored. Secrets never appear in logs, in
/status or in messages; on a command line other users of the host may see them, so variables and files are better. Types
and fields of LMCache that have a meaning here are accepted under their names. An unknown field is an error that names
the nearest; LMCache's other types are refused by name.

Around every tier there is a circuit breaker: after 5 failures in a row that time may heal, calls fail at once, which is
a miss, and one call is tried again after 1 s, later after up to 30 s. Valkey and S3 are asked for one object in its place
if there is no call, so that the tier's state shows when they are back.

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
