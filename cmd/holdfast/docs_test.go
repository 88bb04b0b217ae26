package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/holdfast-kv/holdfast/internal/sabotage"
	"github.com/holdfast-kv/holdfast/offload"
)

const root = "../.."

// TestInvariantsDocument: what docs/invariants.md names is in the tree: files, tests, and
// every sabotage switch with a test that turns it on.
func TestInvariantsDocument(t *testing.T) {
	doc := read(t, "docs/invariants.md")
	for _, m := range regexp.MustCompile("`([a-z][a-z/]*/[a-z_]+\\.go)`").FindAllStringSubmatch(doc, -1) {
		if _, err := os.Stat(filepath.Join(root, m[1])); err != nil {
			t.Errorf("no file %s", m[1])
		}
	}
	tests := regexp.MustCompile("`([a-z][a-z/]*)\\.((?:Test|Fuzz)[A-Za-z0-9]+)`").FindAllStringSubmatch(doc, -1)
	if len(tests) == 0 {
		t.Error("no test is named")
	}
	for _, m := range tests {
		if !strings.Contains(testSource(t, m[1]), "\nfunc "+m[2]+"(") {
			t.Errorf("no test %s in %s", m[2], m[1])
		}
	}
	code, checks := sources(t)
	for s := range sabotage.Switches {
		constant := "sabotage." + camel(s.String())
		row := regexp.MustCompile("(?m)^\\|.*`" + s.String() + "`.*$").FindString(doc)
		switch {
		case row == "":
			t.Errorf("switch %s has no row", s)
		case !regexp.MustCompile(`sabotage\.On\(` + constant + `\)`).MatchString(code):
			t.Errorf("switch %s removes nothing", s)
		case !regexp.MustCompile(constant + `\b`).MatchString(checks):
			t.Errorf("no test turns switch %s on", s)
		}
	}
}

// faults are those of the connector's specification, in its order.
var faults = strings.Split(`event create or record raises
sticky asynchronous device error
storage library drops the event argument
no pack stream
pack runs on another thread than the submitter
GPU connector absent
executor shut down by a racing close
dispatch raises
store raises before launch
store raises after launch
store fails after teardown
store fails when teardown leased nothing, all groups safe
store returns without storing everything
prefix evicted before a late save
table cleared by preemption before emission
evicted candidate of a retired request
staging fence fails
retrieve partial, missing or raising
lookup times out
lookup raises after pinning
tier lost the prefix between lookup and dispatch
pool full for long
failed load repeated
no room for image units
hash no longer in the tier on a state load
KV leg fails with state present
state load refused after booking
orphaned state load never reports
corrupt sidecar
lost save completion, in-process
lost completion or silent rank
silent rank, load
poll times out
slow but valid save
duplicate or replayed operation
contradictory reports from one rank
submission raises
future poll raises always
descriptor invalid
restore raises, or its event cannot be queried
all descriptor slots busy
copy callback lacks the slot argument
adoption raises
adoption loses to an identical image
admission raises midway
server heartbeat lost
engine-driven gather raises after launch
first H2D launch raises
request aborted or cancelled during a transfer
request id reused
prefix caching off with native MP
prefix caching off with dense
draft regions in the native layout
PP > 1
empty or malformed configuration
exit with work pending`, "\n")

// TestConnectorTables: the 50 invariants of the connector and its faults are all there, in
// order, each with a test, or with the word why a dense layout has none.
func TestConnectorTables(t *testing.T) {
	_, doc, found := strings.Cut(read(t, "docs/invariants.md"), "\n## The connector\n")
	invariants, outcomes, second := strings.Cut(doc, "\n### Faults\n")
	if !found || !second {
		t.Fatal("no sections")
	}
	test := regexp.MustCompile("`[a-z/]+\\.(Test|Fuzz)[A-Za-z0-9]+`")
	rows := regexp.MustCompile(`(?m)^\| (\d+) \| (.+?) \| (.*?)\| (.*?)\| (.*?)\|$`).FindAllStringSubmatch(invariants, -1)
	if len(rows) != 50 {
		t.Errorf("%d invariants", len(rows))
	}
	for i, r := range rows {
		elsewhere := strings.Contains(r[2], "State: ") || strings.Contains(r[2], "Collapse: ")
		switch {
		case r[1] != strconv.Itoa(i+1):
			t.Errorf("row %d is invariant %s", i+1, r[1])
		case elsewhere && r[3]+r[4]+r[5] != "":
			t.Errorf("invariant %s does not apply, and has checks", r[1])
		case !elsewhere && (!test.MatchString(r[4]) || !strings.Contains(r[3], ".go`")):
			t.Errorf("invariant %s has no test, or no code", r[1])
		}
	}
	simulator := read(t, "internal/sim/sabotage_test.go")
	for s := range sabotage.Switches {
		if strings.Contains(invariants, "`"+s.String()+"`") && !strings.Contains(simulator, "sabotage."+camel(s.String())+":") {
			t.Errorf("the simulator does not look for switch %s", s)
		}
	}
	list := regexp.MustCompile(`(?m)^\| ([^|-][^|]*?) \| (.+?) \| (.*?)\|$`).FindAllStringSubmatch(outcomes, -1)[1:]
	if len(list) != len(faults) {
		t.Errorf("%d faults, %d are known", len(list), len(faults))
	}
	for i, r := range list[:min(len(list), len(faults))] {
		if r[1] != faults[i] {
			t.Errorf("row %d is %q, not %q", i+1, r[1], faults[i])
		}
		if elsewhere := r[2] == "state" || r[2] == "does not compile"; elsewhere == test.MatchString(r[3]) {
			t.Errorf("%s: outcome %q, checked by %q", r[1], r[2], r[3])
		}
	}
}

// TestConnectorDocument: docs/connector.md lists every setting, and every name of the library
// that it mentions is there.
func TestConnectorDocument(t *testing.T) {
	doc := read(t, "docs/connector.md")
	config := reflect.TypeFor[offload.Config]()
	for i := range config.NumField() {
		if !strings.Contains(doc, "\n| `"+config.Field(i).Name+"` | ") {
			t.Errorf("setting %s has no row", config.Field(i).Name)
		}
	}
	for _, m := range regexp.MustCompile(`"(OFFLOAD_[A-Z_]+)"`).FindAllStringSubmatch(read(t, "offload/env.go"), -1) {
		if !strings.Contains(doc, "\n| `"+m[1]+"` | ") {
			t.Errorf("variable %s has no row", m[1])
		}
	}
	folders := map[string]string{
		"device": "device", "dense": "offload/dense", "engine": "internal/engine", "offload": "offload", "store": "offload/store",
		"transfer": "transfer", "worker": "offload/worker",
	}
	methods := map[string]string{"Scheduler": "offload", "Worker": "offload/worker", "Sequence": "offload", "Stream": "device"}
	named := 0
	for _, m := range regexp.MustCompile(`\b([A-Za-z]+)\.([A-Z][A-Za-z]+)`).FindAllStringSubmatch(doc, -1) {
		folder, isPackage := folders[m[1]]
		if !isPackage {
			folder = methods[m[1]]
		}
		if folder == "" {
			continue
		}
		named++
		if !declares(t, folder, m[2]) {
			t.Errorf("%s has no %s", folder, m[2])
		}
	}
	if named < 50 {
		t.Errorf("only %d names", named)
	}
}

// declares reports whether a package, its tests included, declares an exported name: a type, a
// function, a method of a type or of an interface, or a value.
func declares(t *testing.T, folder, name string) bool {
	t.Helper()
	found := false
	files, err := filepath.Glob(filepath.Join(root, folder, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range files {
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.FuncDecl:
				found = found || n.Name.Name == name
				return false
			case *ast.TypeSpec:
				found = found || n.Name.Name == name
			case *ast.InterfaceType:
				for _, method := range n.Methods.List {
					found = found || len(method.Names) > 0 && method.Names[0].Name == name
				}
			case *ast.ValueSpec:
				found = found || slices.ContainsFunc(n.Names, func(i *ast.Ident) bool { return i.Name == name })
			}
			return true
		})
	}
	return found
}

// TestLocksDocument: docs/locks.md lists every lock of the program, and no other.
func TestLocksDocument(t *testing.T) {
	doc := read(t, "docs/locks.md")
	listed := make(map[string]bool)
	for _, m := range regexp.MustCompile("(?m)^\\| `([^`]+)`").FindAllStringSubmatch(doc, -1) {
		listed[m[1]] = true
	}
	walk(t, func(path string, text []byte) {
		if strings.HasSuffix(path, "_test.go") || strings.Contains(path, "internal/replay/") {
			return
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, text, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, lock := range locks(file) {
			if !listed[lock] {
				t.Errorf("%s in %s is not listed", lock, path)
			}
			delete(listed, lock)
		}
	})
	for lock := range listed {
		t.Errorf("there is no lock %s", lock)
	}
}

// locks returns the struct fields of a file that are locks, as package.Type.field.
func locks(file *ast.File) (names []string) {
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.TypeSpec)
		if !ok {
			return true
		}
		structure, ok := spec.Type.(*ast.StructType)
		if !ok {
			return true
		}
		for _, field := range structure.Fields.List {
			sel, ok := field.Type.(*ast.SelectorExpr)
			if !ok || sel.Sel.Name != "Mutex" && sel.Sel.Name != "RWMutex" {
				continue
			}
			for _, name := range field.Names {
				names = append(names, file.Name.Name+"."+spec.Name.Name+"."+name.Name)
			}
		}
		return true
	})
	return names
}

// TestOverviewDocument: docs/overview.md lists every package, and no other, and each imports only
// from its own row or from rows below.
func TestOverviewDocument(t *testing.T) {
	doc := read(t, "docs/overview.md")
	row := make(map[string]int)
	for i, m := range regexp.MustCompile("(?m)^\\| [0-5] \\| (`[^|]*`) \\|").FindAllStringSubmatch(doc, -1) {
		for name := range strings.SplitSeq(m[1], ", ") {
			row[strings.Trim(name, "`")] = i + 1
		}
	}
	there := make(map[string]bool)
	walk(t, func(path string, text []byte) {
		folder, err := filepath.Rel(root, filepath.Dir(path))
		if err != nil {
			t.Fatal(err)
		}
		there[folder] = true
		if row[folder] == 0 || strings.HasSuffix(path, "_test.go") {
			return
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, text, parser.ImportsOnly)
		if err != nil {
			t.Fatal(err)
		}
		for _, imported := range file.Imports {
			name, ours := strings.CutPrefix(strings.Trim(imported.Path.Value, `"`), "github.com/holdfast-kv/holdfast/")
			if ours && row[name] < row[folder] {
				t.Errorf("%s imports %s, which is not below it", path, name)
			}
		}
	})
	for folder := range there {
		if row[folder] == 0 {
			t.Errorf("package %s is not listed", folder)
		}
	}
	for name := range row {
		if !there[name] {
			t.Errorf("there is no package %s", name)
		}
	}
}

// camel turns salt-out-of-key into SaltOutOfKey.
func camel(name string) string {
	var b strings.Builder
	for word := range strings.SplitSeq(name, "-") {
		b.WriteString(strings.ToUpper(word[:1]) + word[1:])
	}
	return b.String()
}

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(root, path))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// testSource is all test code of a package.
func testSource(t *testing.T, pkg string) string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(root, pkg, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		b.Write(text)
	}
	return b.String()
}

// sources is all code, and all test code of builds with switches.
func sources(t *testing.T) (code, checks string) {
	t.Helper()
	var c, k strings.Builder
	walk(t, func(path string, text []byte) {
		switch {
		case !strings.HasSuffix(path, "_test.go"):
			c.Write(text)
		case strings.HasPrefix(string(text), "//go:build sabotage\n"):
			k.Write(text)
		}
	})
	return c.String(), k.String()
}

// walk visits every Go file.
func walk(t *testing.T, visit func(path string, text []byte)) {
	t.Helper()
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") {
			return err
		}
		text, err := os.ReadFile(path)
		if err == nil {
			visit(path, text)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}
