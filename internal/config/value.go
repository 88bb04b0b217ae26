package config

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// value parses one setting's text into its field of Serve. A returned error completes
// the sentence "SETTING=TEXT: …".
type value interface {
	kind() string
	limits() string
	set(c *Serve, text string) error
}

// text is any string that passes check.
type text struct {
	field func(*Serve) *string
	rule  string
	check func(string) bool
}

func (text) kind() string     { return "text" }
func (v text) limits() string { return v.rule }

func (v text) set(c *Serve, s string) error {
	if v.check != nil && s != "" && !v.check(s) {
		return fmt.Errorf("must be %s", v.rule)
	}
	*v.field(c) = s
	return nil
}

// choice is one of a few words; refused words have a reason of their own.
type choice struct {
	field   func(*Serve) *string // nil: accepted, and nothing else to record
	allowed []string
	refused map[string]string
}

func (choice) kind() string     { return "choice" }
func (v choice) limits() string { return strings.Join(v.allowed, ", ") }

func (v choice) set(c *Serve, s string) error {
	i := slices.IndexFunc(v.allowed, func(a string) bool { return strings.EqualFold(a, s) })
	if i < 0 {
		for word, reason := range v.refused {
			if strings.EqualFold(word, s) {
				return fmt.Errorf("%s; use %s", reason, strings.Join(v.allowed, " or "))
			}
		}
		if len(v.allowed) == 1 {
			return fmt.Errorf("must be %s", v.limits())
		}
		return fmt.Errorf("must be one of %s", v.limits())
	}
	if v.field != nil {
		*v.field(c) = v.allowed[i]
	}
	return nil
}

// integer is a whole number from min to max.
type integer struct {
	field    func(*Serve) *int
	min, max int
}

func (integer) kind() string     { return "int" }
func (v integer) limits() string { return fmt.Sprintf("%d to %d", v.min, v.max) }

func (v integer) set(c *Serve, s string) error {
	n, err := strconv.Atoi(s)
	if err != nil || n < v.min || n > v.max {
		return fmt.Errorf("must be a whole number from %s%s", v.limits(), serviceLink(s))
	}
	*v.field(c) = n
	return nil
}

// serviceLink explains the commonest bad port there is: Kubernetes gives every pod of a
// namespace with a Service named "holdfast" a variable HOLDFAST_PORT=tcp://IP:PORT.
func serviceLink(s string) string {
	if !strings.HasPrefix(s, "tcp://") {
		return ""
	}
	return " (a Kubernetes service link? set enableServiceLinks: false in the pod, or name the service differently)"
}

// powerOfTwo is a power of two from min to max.
type powerOfTwo struct {
	field    func(*Serve) *int64
	min, max int64
}

func (powerOfTwo) kind() string     { return "int" }
func (v powerOfTwo) limits() string { return fmt.Sprintf("a power of two from %d to %d", v.min, v.max) }

func (v powerOfTwo) set(c *Serve, s string) error {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n < v.min || n > v.max || n&(n-1) != 0 {
		return fmt.Errorf("must be %s", v.limits())
	}
	*v.field(c) = n
	return nil
}

// gibibytes is a size in GiB, fractions allowed. Whether it fits this node is asked when
// the pool is made.
type gibibytes struct{ field func(*Serve) *int64 }

const (
	minPool = 1 << 20
	maxPool = 1 << 50
)

func (gibibytes) kind() string   { return "number" }
func (gibibytes) limits() string { return "1 MiB (0.001) to 1 PiB (1048576)" }

func (v gibibytes) set(c *Serve, s string) error {
	gib, err := strconv.ParseFloat(s, 64)
	bytes := gib * (1 << 30)
	if err != nil || math.IsNaN(bytes) || bytes < minPool || bytes > maxPool {
		return fmt.Errorf("must be a number of GiB without a unit, from %s", v.limits())
	}
	*v.field(c) = int64(bytes)
	return nil
}

// share is a number above 0 and at most 1.
type share struct{ field func(*Serve) *float64 }

func (share) kind() string   { return "number" }
func (share) limits() string { return "above 0, at most 1" }

func (v share) set(c *Serve, s string) error {
	f, err := strconv.ParseFloat(s, 64)
	if err != nil || !(f > 0 && f <= 1) {
		return fmt.Errorf("must be %s", v.limits())
	}
	*v.field(c) = f
	return nil
}

// toggle is true or false.
type toggle struct{ apply func(c *Serve, on bool) }

func (toggle) kind() string   { return "bool" }
func (toggle) limits() string { return "true, false" }

func (v toggle) set(c *Serve, s string) error {
	on, err := strconv.ParseBool(s)
	if err != nil {
		return fmt.Errorf("must be true or false")
	}
	v.apply(c, on)
	return nil
}

// seconds is a time from min to max; with zeroOff, 0 is allowed too and means never.
type seconds struct {
	field    func(*Serve) *time.Duration
	min, max float64
	zeroOff  bool
}

func (seconds) kind() string { return "seconds" }

func (v seconds) limits() string {
	span := fmt.Sprintf("%g to %g", v.min, v.max)
	if v.zeroOff {
		return "0 (off), or " + span
	}
	return span
}

func (v seconds) set(c *Serve, s string) error {
	f, err := strconv.ParseFloat(s, 64)
	ok := err == nil && f >= v.min && f <= v.max || err == nil && v.zeroOff && f == 0
	if !ok {
		return fmt.Errorf("must be a number of seconds, %s", v.limits())
	}
	*v.field(c) = time.Duration(f * float64(time.Second))
	return nil
}

// shmName is the name behind ShmPrefix; empty turns shared memory off.
type shmName struct{}

func (shmName) kind() string { return "text" }
func (shmName) limits() string {
	return "at most 200 letters, digits, dots, dashes and underscores"
}

func (v shmName) set(c *Serve, s string) error {
	c.SHM, c.ShmName = s != "", ""
	if s == "" {
		return nil
	}
	bad := func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("._-", r))
	}
	if len(s) > 200 || strings.ContainsFunc(s, bad) {
		return fmt.Errorf("must be %s", v.limits())
	}
	c.ShmName = ShmPrefix + strings.TrimPrefix(s, ShmPrefix)
	return nil
}

// ignored takes any value and does nothing; the loader warns.
type ignored struct{ isSwitch bool }

func (v ignored) kind() string {
	if v.isSwitch {
		return "bool"
	}
	return "text"
}
func (ignored) limits() string           { return "" }
func (ignored) set(*Serve, string) error { return nil }

// refused takes no value; the reason is the error.
type refused struct{ reason string }

func (refused) kind() string                   { return "text" }
func (refused) limits() string                 { return "" }
func (v refused) set(_ *Serve, _ string) error { return fmt.Errorf("%s", v.reason) }
