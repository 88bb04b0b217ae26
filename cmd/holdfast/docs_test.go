package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/holdfast-kv/holdfast/internal/sabotage"
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
