package valkey

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/redis/rueidis"

	"github.com/holdfast-kv/holdfast/internal/tier"
)

const (
	// scanCount is how many keys a server looks at in one SCAN.
	scanCount = 1000
	// maxScans bounds the SCANs of one List, whose page may then be short, or empty, among
	// many keys of other programs.
	maxScans = 50
)

// ErrCursor is wrapped when text is not a cursor of List.
var ErrCursor = errors.New("not a cursor of this store")

// List lists with SCAN, node after node. SCAN shows everything that is there throughout, but
// after the server has made its table of keys smaller it may show a key again: on one page
// that is noticed, on a later page it is not. A node that joins behind the cursor's, or takes
// over slots from a node before it, may be missed.
func (s *Store) List(ctx context.Context, from string, limit int) (entries []tier.Entry, next string, err error) {
	client, leave, err := s.enter(ctx, "list")
	if err != nil {
		return nil, "", err
	}
	defer leave()
	at, err := parseCursor(from)
	if err != nil {
		return nil, "", fmt.Errorf("valkey: list: %w", err)
	}
	entries, err = s.list(ctx, client, &at, limit)
	s.health.Note(err)
	if err != nil {
		return nil, "", err
	}
	return entries, at.String(), nil
}

// list gives a page and moves the cursor behind it.
func (s *Store) list(ctx context.Context, client rueidis.Client, at *cursor, limit int) (page []tier.Entry, err error) {
	seen := map[tier.Key]bool{}
	add := func(entries []tier.Entry) {
		for i, e := range entries {
			if len(page) == limit {
				at.rest = slices.Clone(entries[i:])
				return
			}
			if !seen[e.Key] {
				seen[e.Key] = true
				page = append(page, e)
			}
		}
	}
	rest := at.rest
	at.rest = nil
	add(rest)
	for scans := 0; len(page) < limit && !at.ended && scans < maxScans; scans++ {
		node, address, err := s.node(ctx, client, at)
		if err != nil || node == nil {
			at.ended = err == nil
			return page, err
		}
		found, err := s.scan(ctx, node, at, min(limit-len(page), scanCount))
		if err != nil {
			return nil, err
		}
		if at.scan == 0 { // the node has shown everything
			at.ended = address == ""
			at.passed = true
		}
		add(found)
	}
	return page, nil
}

// node is the master at the cursor's place, or the next one; nil after the last. Its address
// is "" if there is only one and it may change (a sentinel's master).
func (s *Store) node(ctx context.Context, client rueidis.Client, at *cursor) (rueidis.Client, string, error) {
	nodes := client.Nodes()
	if client.Mode() != rueidis.ClientModeCluster {
		for _, node := range nodes {
			return node, "", nil
		}
		return nil, "", nil
	}
	for _, address := range slices.Sorted(maps.Keys(nodes)) {
		if address < at.node || address == at.node && at.passed {
			continue
		}
		bound, end, err := s.exchange(ctx, s.asides, 0)
		if err != nil {
			return nil, "", fmt.Errorf("valkey: list: %w", err)
		}
		role, err := nodes[address].Do(bound, client.B().Role().Build()).ToArray()
		end()
		if err != nil {
			return nil, "", s.failure(ctx, "list", err)
		}
		if name, err := role[0].ToString(); err != nil || name != "master" {
			continue
		}
		if address != at.node {
			*at = cursor{node: address}
		}
		return nodes[address], address, nil
	}
	return nil, "", nil
}

// scan makes one SCAN and looks at the values it finds.
func (s *Store) scan(ctx context.Context, node rueidis.Client, at *cursor, count int) (found []tier.Entry, err error) {
	bound, end, err := s.exchange(ctx, s.asides, 0)
	if err != nil {
		return nil, fmt.Errorf("valkey: list: %w", err)
	}
	defer end()
	shown, err := node.Do(bound, node.B().Scan().Cursor(at.scan).Match(pattern(s.o.Prefix)).Count(int64(count)).Build()).AsScanEntry()
	if err != nil {
		return nil, s.failure(ctx, "list", err)
	}
	at.scan = shown.Cursor
	keys := make([]tier.Key, 0, len(shown.Elements))
	commands := make([]rueidis.Completed, 0, 2*len(shown.Elements))
	for _, name := range shown.Elements {
		key, err := tier.ParseKey(strings.TrimPrefix(name, s.o.Prefix))
		if err != nil {
			continue // another program's
		}
		keys = append(keys, key)
		// Arbitrary commands have no slot: they go to the node that showed the key.
		commands = append(commands, node.B().Arbitrary("STRLEN", name).Build(),
			node.B().Arbitrary("GETRANGE", name, "0", strconv.Itoa(tier.HeaderBytes-1)).Build())
	}
	if len(keys) == 0 {
		return nil, nil
	}
	replies := node.DoMulti(bound, commands...)
	for i, key := range keys {
		length, err := replies[2*i].AsInt64()
		header, err2 := replies[2*i+1].ToString()
		if err := errors.Join(replies[2*i].NonRedisError(), replies[2*i+1].NonRedisError()); err != nil {
			return nil, s.failure(ctx, "list", err)
		}
		var h tier.Header
		if err != nil || err2 != nil || h.Decode([]byte(header)) != nil || h.Key != key || length != tier.HeaderBytes+h.Length {
			continue // gone meanwhile, moved away, or nothing that a get would return
		}
		found = append(found, tier.Entry{Key: key, Length: h.Length})
	}
	return found, nil
}

// pattern matches the keys that begin with the prefix.
func pattern(prefix string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`, `]`, `\]`, `^`, `\^`).Replace(prefix) + "*"
}

// cursor is a place in a listing. Its text is NODE SCAN REST…: the node's address, or "-"; what
// SCAN gave there, "!" once the node has shown everything, "." once all have; and what was
// shown beyond the page's end, KEY=LENGTH each, since SCAN gives what it has, not what it was
// asked for.
type cursor struct {
	node   string
	scan   uint64
	passed bool // the node has shown everything
	ended  bool // all have
	rest   []tier.Entry
}

func (c *cursor) String() string {
	if c.ended && len(c.rest) == 0 {
		return ""
	}
	var b strings.Builder
	if c.node == "" {
		b.WriteByte('-')
	}
	b.WriteString(c.node)
	b.WriteByte(' ')
	switch {
	case c.ended:
		b.WriteByte('.')
	case c.passed:
		b.WriteByte('!')
	default:
		b.WriteString(strconv.FormatUint(c.scan, 10))
	}
	for _, e := range c.rest {
		fmt.Fprintf(&b, " %s=%d", e.Key, e.Length)
	}
	return b.String()
}

func parseCursor(text string) (c cursor, err error) {
	if text == "" {
		return cursor{}, nil
	}
	refused := fmt.Errorf("%w: %.100q", ErrCursor, text)
	parts := strings.Split(text, " ")
	if len(parts) < 2 || parts[0] == "" {
		return cursor{}, refused
	}
	if parts[0] != "-" {
		c.node = parts[0]
	}
	switch parts[1] {
	case ".":
		c.ended = true
	case "!":
		c.passed = true
	default:
		if c.scan, err = strconv.ParseUint(parts[1], 10, 64); err != nil {
			return cursor{}, refused
		}
	}
	for _, part := range parts[2:] {
		name, length, _ := strings.Cut(part, "=")
		key, err := tier.ParseKey(name)
		n, err2 := strconv.ParseInt(length, 10, 64)
		if err != nil || err2 != nil || n < 1 {
			return cursor{}, refused
		}
		c.rest = append(c.rest, tier.Entry{Key: key, Length: n})
	}
	if c.ended && len(c.rest) == 0 { // which is ""
		return cursor{}, refused
	}
	return c, nil
}
