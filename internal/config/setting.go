package config

import "strings"

// Setting is one row of the table.
type Setting struct {
	// Name is the flag without its dashes, and the key in the file.
	Name string
	// Group is the heading under which help and documentation show it.
	Group string
	// Default is the value as one would write it; "" where Doc says what happens without.
	Default string
	// Unit of the value, "" if it has none.
	Unit string
	// Doc says what the setting does, in one or two sentences.
	Doc string
	// LMCache says that `lmcache server` has a flag of this name; LMCACHE_NAME is then
	// accepted too.
	LMCache bool
	// Tuning says that a bad value is a warning and not an error.
	Tuning bool
	// EmptyCounts says that an empty flag or file value is a value of its own. An
	// empty variable is still an unset one.
	EmptyCounts bool
	// Negatable says that --no-NAME exists.
	Negatable bool
	// NotInFile says that the file cannot hold it.
	NotInFile bool
	// List says that it may be given several times and is a list in the file. Its text
	// may have secrets, so messages do not repeat it.
	List bool

	value value
}

// The headings, in the order in which they are shown. Settings of the last two exist so
// that an existing command line of `lmcache server` keeps working, or is refused clearly.
const (
	GroupProtocol = "Protocol"
	GroupMemory   = "Memory"
	GroupTiers    = "Tiers"
	GroupLimits   = "Limits and liveness"
	GroupAdmin    = "Admin HTTP and logs"
	GroupIgnored  = "Accepted without effect"
	GroupRefused  = "Refused"
)

// Groups returns the headings in order.
func Groups() []string {
	return []string{GroupProtocol, GroupMemory, GroupTiers, GroupLimits, GroupAdmin, GroupIgnored, GroupRefused}
}

// Env is the setting's environment variable.
func (s Setting) Env() string { return "HOLDFAST_" + variable(s.Name) }

// LMCacheEnv is the weaker variable that stands for the same setting, or "".
func (s Setting) LMCacheEnv() string {
	if !s.LMCache || s.Group == GroupRefused {
		return ""
	}
	return "LMCACHE_" + variable(s.Name)
}

// Kind is the value's type as help shows it: text, int, number, bool, choice, seconds.
func (s Setting) Kind() string { return s.value.kind() }

// Limits says which values are accepted, "" if all are.
func (s Setting) Limits() string { return s.value.limits() }

// hidden reports whether help leaves the setting out.
func (s Setting) hidden() bool { return s.Group == GroupIgnored || s.Group == GroupRefused }

func variable(name string) string { return strings.ToUpper(strings.ReplaceAll(name, "-", "_")) }
