package adapter

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-kv/holdfast/internal/tier/disk"
	"github.com/holdfast-kv/holdfast/internal/tier/remote"
	"github.com/holdfast-kv/holdfast/internal/tier/s3"
	"github.com/holdfast-kv/holdfast/internal/tier/valkey"
)

// TestParse: what a field says arrives where it is used, in LMCache's names and in ours.
func TestParse(t *testing.T) {
	local := valkey.Options{Addresses: []string{"h:6379"}}
	bucket := s3.Options{Endpoint: "https://s3.example.com", Bucket: "kv"}
	cases := []struct {
		name, text string
		want       Spec
	}{
		{"disk", `{"type":"disk","path":"/d","size_gb":1.5,"sync":"full","queue_depth":32,"direct":"off","reserve_free_gb":2}`,
			Spec{Kind: Disk, Disk: disk.Options{Path: "/d", LimitBytes: 3 << 29, Sync: disk.SyncFull, QueueDepth: 32, Direct: disk.DirectOff, ReserveFree: 2 << 30}}},
		{"disk without reserve", `{"type":"disk","path":"/d","size_gb":1,"reserve_free_gb":0}`,
			Spec{Kind: Disk, Disk: disk.Options{Path: "/d", LimitBytes: 1 << 30, ReserveFree: -1}}},
		{"LMCache's fs", `{"type":"fs","base_path":"/d","max_capacity_gb":10,"use_odirect":true,"relative_tmp_dir":"tmp","read_ahead_size":4096,"recover_on_start":true,"num_workers":4,"persist_enabled":true,"serde":null,"eviction":{"eviction_policy":"LRU","trigger_watermark":0.8,"eviction_ratio":0.2}}`,
			Spec{Kind: Disk, Disk: disk.Options{Path: "/d", LimitBytes: 10 << 30, Direct: disk.DirectAuto}}},
		{"LMCache's fs_native without O_DIRECT", `{"type":"fs_native","base_path":"/d","use_odirect":false}`,
			Spec{Kind: Disk, Disk: disk.Options{Path: "/d", Direct: disk.DirectOff}}},
		{"knobs", `{"type":"disk","path":"/d","name":"nvme","retries":3,"rate_limit_mb":100,"concurrency":7,"timeout":2.5}`,
			Spec{Kind: Disk, Name: "nvme", Disk: disk.Options{Path: "/d"}, Retries: 3, RateLimit: 100 << 20, Concurrency: 7, Timeout: 2500 * time.Millisecond}},

		{"LMCache's resp", `{"type":"resp","host":"h","port":7000,"num_workers":8,"username":"u","password":"p","max_capacity_gb":5}`,
			Spec{Kind: Valkey, Retries: 2, Valkey: valkey.Options{Addresses: []string{"h:7000"}, Connections: 8, Username: "u", Password: "p"}}},
		{"host alone", `{"type":"redis","host":"h"}`, Spec{Kind: Valkey, Retries: 2, Valkey: local}},
		{"LMCache's valkey", `{"type":"valkey","startup_nodes":"a:1, b:2","cluster_mode":true,"key_prefix":"x:","tls_enable":true,"request_timeout":1.5,"connection_timeout":10}`,
			Spec{Kind: Valkey, Retries: 2, Valkey: valkey.Options{Addresses: []string{"a:1", "b:2"}, Cluster: true, Prefix: "x:", TLS: &remote.TLS{}, Timeout: 1500 * time.Millisecond}}},
		{"sentinels", `{"type":"valkey","addresses":["a:1","b:2"],"sentinel":"main","sentinel_username":"su","sentinel_password":"sp","password_env":"PW","retries":0}`,
			Spec{Kind: Valkey, PasswordEnv: "PW", Valkey: valkey.Options{Addresses: []string{"a:1", "b:2"}, Sentinel: "main", SentinelUsername: "su", SentinelPassword: "sp"}}},
		{"url", `{"type":"valkey","url":"redis://u:p@h/3","ttl":60,"ttl_refresh":true}`,
			Spec{Kind: Valkey, Retries: 2, Valkey: valkey.Options{Addresses: []string{"h:6379"}, Username: "u", Password: "p", DB: 3, TTL: time.Minute, Refresh: true}}},
		{"url with TLS", `{"type":"valkey","url":"rediss://[::1]:7","tls_ca_file":"ca","tls_cert_file":"c","tls_key_file":"k","tls_server_name":"n","tls_insecure":true}`,
			Spec{Kind: Valkey, Retries: 2, Valkey: valkey.Options{Addresses: []string{"[::1]:7"}, TLS: &remote.TLS{CAFile: "ca", CertFile: "c", KeyFile: "k", ServerName: "n", Insecure: true}}}},

		{"s3", `{"type":"s3","endpoint":"s3.example.com","bucket":"kv"}`, Spec{Kind: S3, Retries: 2, S3: bucket}},
		{"s3 without TLS", `{"type":"s3","endpoint":"127.0.0.1:9000","tls":false,"bucket":"kv","prefix":"p/","region":"r","access_key":"a","secret_key":"s","session_token":"t","path_style":true,"part_size_mb":8,"connections":3,"request_timeout":9,"storage_class":"GLACIER_IR"}`,
			Spec{Kind: S3, Retries: 2, S3: s3.Options{Endpoint: "http://127.0.0.1:9000", Bucket: "kv", Prefix: "p/", Region: "r", AccessKey: "a", SecretKey: "s", SessionToken: "t", PathStyle: true, PartBytes: 8 << 20, Connections: 3, Timeout: 9 * time.Second, StorageClass: "GLACIER_IR"}}},
		{"LMCache's s3", `{"type":"s3","s3_endpoint":"s3://kv.s3.example.com","s3_region":"r","s3_num_io_threads":64,"s3_prefer_http2":true,"s3_enable_s3express":false,"aws_access_key_id":"a","aws_secret_access_key":"s"}`,
			Spec{Kind: S3, Retries: 2, S3: s3.Options{Endpoint: "https://s3.example.com", Bucket: "kv", Region: "r", AccessKey: "a", SecretKey: "s", Connections: 64}}},
		{"LMCache's s3 with a bucket", `{"type":"s3","s3_endpoint":"http://minio:9000","s3_bucket":"kv","disable_tls":true}`,
			Spec{Kind: S3, Retries: 2, S3: s3.Options{Endpoint: "http://minio:9000", Bucket: "kv"}}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			specs, _, err := Parse(c.text)
			if err != nil || len(specs) != 1 {
				t.Fatalf("%v, %v", specs, err)
			}
			if diff := cmp.Diff(show(c.want), show(specs[0])); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if specs[0].scratch != (scratch{}) {
				t.Errorf("scratch is left: %+v", specs[0].scratch)
			}
		})
	}
}

// show is a specification without its String, for a comparison that shows everything.
type shown struct {
	Kind                             Kind
	Name                             string
	Disk                             disk.Options
	Valkey                           valkey.Options
	S3                               s3.Options
	PasswordEnv, SentinelPasswordEnv string
	Retries                          int
	RateLimit                        float64
	Concurrency                      int
	Timeout                          time.Duration
}

func show(s Spec) shown {
	return shown{s.Kind, s.Name, s.Disk, s.Valkey, s.S3, s.PasswordEnv, s.SentinelPasswordEnv, s.Retries, s.RateLimit, s.Concurrency, s.Timeout}
}

// TestParseMany: the order is that of the text, in any mixture of objects and lists.
func TestParseMany(t *testing.T) {
	specs, warnings, err := Parse(`{"type":"disk","path":"/a"} [{"type":"redis","host":"b"},{"type":"disk","path":"/c","size_gb":1}] []`)
	if err != nil || fmt.Sprint(specs) != "[disk at /a valkey at [b:6379] disk at /c]" {
		t.Errorf("%v, %v", specs, err)
	}
	if len(warnings) != 1 || !strings.HasPrefix(warnings[0], "adapter 1: the disk at /a has no limit") {
		t.Errorf("warnings %q", warnings)
	}
	if names := Names(specs); fmt.Sprint(names) != "[disk valkey disk-2]" {
		t.Errorf("names %v", names)
	}
	if specs, _, err := Parse(" \n"); err != nil || len(specs) != 0 {
		t.Errorf("nothing: %v, %v", specs, err)
	}
}

func TestNames(t *testing.T) {
	specs := []Spec{{Kind: Disk}, {Kind: Disk, Name: "disk-2"}, {Kind: Disk}, {Kind: S3, Name: "disk"}, {Kind: S3}}
	if names := Names(specs); fmt.Sprint(names) != "[disk-3 disk-2 disk-4 disk s3]" {
		t.Errorf("names %v", names)
	}
}

// TestWarnings: a field without effect is accepted and said to be without.
func TestWarnings(t *testing.T) {
	_, warnings, err := Parse(`{"type":"fs","base_path":"/d","max_capacity_gb":1,"read_ahead_size":1,"eviction":{"eviction_policy":"LRU"},"shared":false}`)
	if err != nil {
		t.Fatal(err)
	}
	all := strings.Join(warnings, "\n")
	for _, part := range []string{`field "eviction" of disk: no effect here: a disk evicts by itself`, `field "read_ahead_size" of disk`, `field "shared" of disk`} {
		if !strings.Contains(all, part) {
			t.Errorf("no warning says %s: %q", part, warnings)
		}
	}
	if len(warnings) != 3 {
		t.Errorf("%d warnings: %q", len(warnings), warnings)
	}
}

// TestRefusals: an error names the type, the field and what to do, and no secret.
func TestRefusals(t *testing.T) {
	cases := []struct {
		name, text string
		want       []string
	}{
		{"no JSON", `type=disk`, []string{"no JSON from byte"}},
		{"no object", `"disk"`, []string{"must be a JSON object", `{"type":"disk"`}},
		{"list of text", `["disk"]`, []string{"must be a JSON object"}},
		{"no type", `{"path":"/d"}`, []string{`no field "type"`, "disk (also fs, fs_native), valkey (also resp, redis), s3"}},
		{"type is no text", `{"type":1}`, []string{`"type" must be text`}},
		{"LMCache's type", `{"type":"nixl_store"}`, []string{`"nixl_store" is one that LMCache has`, "it has disk (also fs"}},
		{"near type", `{"type":"dsk"}`, []string{`the nearest is "disk"`}},
		{"odd type", `{"type":"gpu"}`, []string{`unknown type "gpu"; there are disk`}},
		{"unknown field", `{"type":"disk","pth":"/d"}`, []string{`disk: field "pth" is unknown; the nearest is "path"`}},
		{"field unlike any", `{"type":"disk","path":"/d","xyzzyxyzzy":1}`, []string{`"xyzzyxyzzy" is unknown; there are type, path, base_path`}},
		{"field of another type", `{"type":"disk","path":"/d","region":"x"}`, []string{`field "region" is unknown`}},
		{"twice", `{"type":"disk","path":"/d","path":"/e"}`, []string{`"path" is there twice`}},
		{"no path", `{"type":"disk"}`, []string{`disk: field "path" is missing`}},
		{"path is no text", `{"type":"disk","path":7}`, []string{`field "path" must be text`}},
		{"negative size", `{"type":"disk","path":"/d","size_gb":-1}`, []string{`field "size_gb" must be a number of GiB without a unit: 0 for none, or from 0.001 (1 MiB) to 1048576`}},
		{"size of nothing", `{"type":"disk","path":"/d","size_gb":0.0001}`, []string{`field "size_gb" must be a number of GiB`}},
		{"size as text", `{"type":"disk","path":"/d","size_gb":"5"}`, []string{`field "size_gb" must be a number`}},
		{"no JSON at all", `/var/cache/holdfast`, []string{"no JSON from byte 1 on", `as in {"type":"disk","path":"/var/cache/holdfast","size_gb":500}`}},
		{"no time", `{"type":"disk","path":"/d","timeout":"5s"}`, []string{`field "timeout" must be a number of seconds from 0 to 3600`}},
		{"sync", `{"type":"disk","path":"/d","sync":"maybe"}`, []string{`field "sync" must be one of ["none" "data" "full"]`}},
		{"depth", `{"type":"disk","path":"/d","queue_depth":0}`, []string{`"queue_depth" must be a whole number from 1 to 1024`}},
		{"fraction", `{"type":"disk","path":"/d","queue_depth":1.5}`, []string{`"queue_depth" must be a whole number`}},
		{"direct", `{"type":"disk","path":"/d","direct":"always"}`, []string{`"direct" must be "auto"`}},
		{"all at once", `{"type":"disk","path":1,"sync":2}`, []string{`"path"`, `"sync"`}},
		{"serde", `{"type":"disk","path":"/d","serde":{"type":"fp8"}}`, []string{`field "serde" is refused`, "bytes as they are"}},
		{"persist", `{"type":"disk","path":"/d","persist_enabled":false}`, []string{`"persist_enabled" is false, but tiers keep`}},
		{"isolated", `{"type":"disk","path":"/d","eviction":{"eviction_policy":"IsolatedLRU"}}`, []string{"IsolatedLRU", "use LRU"}},
		{"eviction field", `{"type":"disk","path":"/d","eviction":{"policy":"LRU"}}`, []string{`"eviction" has no field "policy"`}},
		{"name", `{"type":"disk","path":"/d","name":"a b"}`, []string{`field "name" must be`}},
		{"same name", `{"type":"disk","path":"/d","name":"a"}{"type":"disk","path":"/e","name":"a"}`, []string{`adapter 2: another one has the name "a"`}},
		{"which", `{"type":"disk","path":"/d"}{"type":"disk"}`, []string{`adapter 2: disk: field "path" is missing`}},
		{"no address", `{"type":"valkey"}`, []string{`valkey: field "addresses" is missing`}},
		{"bad address", `{"type":"valkey","addresses":"h"}`, []string{`has "h", which is not HOST:PORT`}},
		{"URL as address", `{"type":"valkey","addresses":["redis://u:SECRET@h:6379"]}`, []string{`field "addresses" must be HOST:PORT`, `"url"`}},
		{"user in address", `{"type":"valkey","addresses":"SECRET@h:6379"}`, []string{`field "addresses" must be HOST:PORT`}},
		{"user in host", `{"type":"resp","host":"u:SECRET@h"}`, []string{`field "host" must be the name of a server alone`}},
		{"port 0", `{"type":"resp","host":"h","port":0}`, []string{`"port" must be a whole number from 1 to 65535`}},
		{"port alone", `{"type":"resp","port":1,"addresses":"a:1"}`, []string{`"port" needs "host"`}},
		{"both passwords", `{"type":"resp","host":"h","password":"SECRET","password_env":"P"}`, []string{`"password" and "password_env"`}},
		{"password as number", `{"type":"resp","host":"h","password":5}`, []string{`field "password" must be text, in quotation marks`}},
		{"url", `{"type":"valkey","url":"redis://:SECRET@h:x"}`, []string{`field "url" must be redis://`}},
		{"url scheme", `{"type":"valkey","url":"http://:SECRET@h"}`, []string{`field "url" must be redis://`}},
		{"TLS fields alone", `{"type":"valkey","host":"h","tls_ca_file":"c"}`, []string{`not "tls": true`}},
		{"no endpoint", `{"type":"s3","bucket":"b"}`, []string{`s3: field "endpoint" is missing`}},
		{"no bucket", `{"type":"s3","endpoint":"h"}`, []string{`s3: field "bucket" is missing`}},
		{"odd endpoint", `{"type":"s3","endpoint":"ftp://h","bucket":"b"}`, []string{`"endpoint" must be http://`}},
		{"endpoint with user", `{"type":"s3","endpoint":"https://u:SECRET@h","bucket":"b"}`, []string{`"endpoint" must be http://`}},
		{"half a key", `{"type":"s3","endpoint":"h","bucket":"b","secret_key":"SECRET"}`, []string{`"access_key" and "secret_key" belong together`}},
		{"contradiction", `{"type":"s3","endpoint":"http://h","bucket":"b","tls":true}`, []string{"contradict"}},
		{"express", `{"type":"s3","endpoint":"h","bucket":"b","s3_enable_s3express":true}`, []string{"S3 Express"}},
		{"too much text", `{"type":"disk","path":"` + strings.Repeat("x", MaxBytes) + `"}`, []string{"at most 65536"}},
		{"too many", strings.Repeat(`{"type":"disk","path":"/d"}`, 17), []string{"17 of them, at most 16"}},
		{"secret in bad JSON", `{"type":"resp","password":"SECRET",}`, []string{"no JSON"}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			specs, _, err := Parse(c.text)
			if !errors.Is(err, ErrSpec) || specs != nil {
				t.Fatalf("%v, error %v; want one that wraps ErrSpec", specs, err)
			}
			for _, part := range c.want {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("the error does not say %q:\n%v", part, err)
				}
			}
			if strings.Contains(err.Error(), "SECRET") {
				t.Errorf("the error has the secret:\n%v", err)
			}
		})
	}
}

// TestSecretsDoNotPrint: whichever way a specification is printed.
func TestSecretsDoNotPrint(t *testing.T) {
	specs, _, err := Parse(`{"type":"valkey","url":"redis://u:SECRET@h","sentinel":"m","sentinel_password":"SECRET"}
		{"type":"s3","endpoint":"h","bucket":"b","access_key":"k","secret_key":"SECRET","session_token":"SECRET"}`)
	if err != nil {
		t.Fatal(err)
	}
	config := struct{ Tiers []Spec }{specs}
	asJSON, err := json.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	var log strings.Builder
	slog.New(slog.NewTextHandler(&log, nil)).Info("open", "tier", specs[0], "tiers", specs)
	slog.New(slog.NewJSONHandler(&log, nil)).Info("open", "tier", specs[0], "tiers", config)
	for _, text := range []string{
		fmt.Sprint(config), fmt.Sprintf("%+v", config), fmt.Sprintf("%#v", config), fmt.Sprintf("%v %s %q", specs[0], specs[1], specs), string(asJSON), log.String(),
	} {
		if strings.Contains(text, "SECRET") || !strings.Contains(text, "valkey at [h:6379]") {
			t.Errorf("printed: %s", text)
		}
	}
}

// TestTable: no name stands for two fields of a kind, each is documented, and each example is
// one.
func TestTable(t *testing.T) {
	for _, k := range kinds {
		seen := map[string]string{"type": "type"}
		for _, f := range k.fields {
			for _, name := range append([]string{f.name}, f.aliases...) {
				if seen[name] != "" {
					t.Errorf("%s: %q is %q and %q", k.kind, name, seen[name], f.name)
				}
				seen[name] = f.name
			}
			if f.doc == "" || f.values == "" || f.set == nil {
				t.Errorf("%s: field %q lacks values, a description or a setter", k.kind, f.name)
			}
		}
		specs, _, err := Parse(k.example)
		if err != nil || len(specs) != 1 || specs[0].Kind != k.kind {
			t.Errorf("%s: the example is %v, %v", k.kind, specs, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, k := range kinds {
		f.Add(k.example)
		f.Add("[" + k.example + "," + k.example + "]")
	}
	f.Add(`{"type":"fs","base_path":"/d","eviction":{"eviction_policy":"LRU"},"serde":null}`)
	f.Add(`{"type":"valkey","url":"rediss://u:p@[::1]:1/2","addresses":"a:1,b:2","ttl":1e300}`)
	f.Add(`{"type":"s3","s3_endpoint":"s3://a.b","part_size_mb":5}`)
	f.Fuzz(func(t *testing.T, text string) {
		specs, _, err := Parse(text)
		if err != nil && (!errors.Is(err, ErrSpec) || specs != nil) {
			t.Fatalf("%v, %v", specs, err)
		}
		names := Names(specs)
		for i, s := range specs {
			d := s.Disk.LimitBytes
			if d < 0 || s.RateLimit < 0 || s.Timeout < 0 || s.Valkey.TTL < 0 || s.Retries < 0 || names[i] == "" || s.scratch != (scratch{}) {
				t.Fatalf("%#v: %+v", s, show(s))
			}
		}
	})
}
