package adapter

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-kv/holdfast/internal/tier/remote"
)

var valkeyKind = kind{
	kind: Valkey, aliases: []string{"resp", "redis"},
	doc:      "A server that speaks Redis' protocol, alone, watched by sentinels, or a cluster, for any number of servers. Its own maxmemory and eviction bound what it keeps.",
	example:  `{"type":"valkey","addresses":["cache-1:6379"],"password_env":"CACHE_PASSWORD","tls":true}`,
	defaults: func(s *Spec) { s.Retries = 2 },
	fields: []field{
		{name: "addresses", aliases: []string{"startup_nodes", "address"}, values: "HOST:PORT, several in a list or with commas", doc: "The server; some nodes of a cluster; the sentinels.", set: setAddresses},
		{name: "url", values: "redis://[USER[:PASSWORD]@]HOST:PORT[/DB], rediss:// for TLS", doc: "The same in one piece.", set: setURL},
		{name: "host", values: "text", doc: "LMCache's way of naming one server, with port.", set: text(func(s *Spec) *string { return &s.host })},
		{name: "port", values: "1 to 65535", doc: "The port of host. Default: 6379.", set: integer(func(s *Spec) *int { return &s.port }, 1, 65535)},
		{name: "cluster", aliases: []string{"cluster_mode"}, values: "true, false", doc: "It must be a cluster. Default: the server is asked.",
			set: yes(func(s *Spec, b bool) { s.Valkey.Cluster = b })},
		{name: "sentinel", values: "text", doc: "Name of the master that the sentinels at the addresses watch.", set: text(func(s *Spec) *string { return &s.Valkey.Sentinel })},
		{name: "sentinel_username", values: "text", doc: "User name for the sentinels.", set: text(func(s *Spec) *string { return &s.Valkey.SentinelUsername })},
		{name: "sentinel_password", values: "text", doc: "Password for the sentinels; sentinel_password_env is better.", set: text(func(s *Spec) *string { return &s.Valkey.SentinelPassword })},
		{name: "sentinel_password_env", values: "text", doc: "Environment variable that has it.", set: text(func(s *Spec) *string { return &s.SentinelPasswordEnv })},
		{name: "username", values: "text", doc: "User name.", set: text(func(s *Spec) *string { return &s.Valkey.Username })},
		{name: "password", values: "text", doc: "Password; other users of this host may see it on a command line, password_env is better.", set: text(func(s *Spec) *string { return &s.Valkey.Password })},
		{name: "password_env", values: "text", doc: "Environment variable that has the password.", set: text(func(s *Spec) *string { return &s.PasswordEnv })},
		{name: "tls", aliases: []string{"tls_enable"}, values: "true, false", doc: "Encrypt, and check who the server is. Default: false.", set: yes(func(s *Spec, b bool) { s.tls = b })},
		tlsField("tls_ca_file", "Authorities to trust in place of the system's, in PEM form.", func(t *remote.TLS) *string { return &t.CAFile }),
		tlsField("tls_cert_file", "Our certificate, in PEM form.", func(t *remote.TLS) *string { return &t.CertFile }),
		tlsField("tls_key_file", "Its key, in PEM form.", func(t *remote.TLS) *string { return &t.KeyFile }),
		tlsField("tls_server_name", "Name to check in place of the address'.", func(t *remote.TLS) *string { return &t.ServerName }),
		{name: "tls_insecure", values: "true, false", doc: "Trust any server. Default: false.", set: yes(func(s *Spec, b bool) { s.tlsOptions.Insecure = b })},
		{name: "db", aliases: []string{"database_id"}, values: "0 to 1023", doc: "Database; a cluster has 0 only. Default: 0.",
			set: integer(func(s *Spec) *int { return &s.Valkey.DB }, 0, 1023)},
		{name: "prefix", aliases: []string{"key_prefix"}, values: "text", doc: "What every key begins with. Default: `holdfast:`.", set: text(func(s *Spec) *string { return &s.Valkey.Prefix })},
		{name: "ttl", aliases: []string{"ttl_seconds"}, values: "seconds, 0 = none", doc: "Age at which the server drops an object. Default: none.",
			set: seconds(func(s *Spec) *time.Duration { return &s.Valkey.TTL }, 0, 10*365*24*3600)},
		{name: "ttl_refresh", values: "true, false", doc: "A read makes an object young again. Default: false.", set: yes(func(s *Spec, b bool) { s.Valkey.Refresh = b })},
		{name: "request_timeout", values: "seconds", doc: "Time of one exchange with the server. Default: 5.",
			set: seconds(func(s *Spec) *time.Duration { return &s.Valkey.Timeout }, 0.001, 3600)},
		{name: "connections", aliases: []string{"num_workers"}, values: "1 to 1024", doc: "Transfers at once, and with it connections to each server. Default: 4.",
			set: integer(func(s *Spec) *int { return &s.Valkey.Connections }, 1, 1024)},
		{name: "connection_timeout", values: "seconds", doc: "LMCache's time to connect.", set: anything, without: "request_timeout bounds it"},
		{name: "max_capacity_gb", values: "GiB", doc: "LMCache's account of what is stored.", set: anything, without: "the server bounds its own memory (maxmemory, maxmemory-policy)"},
	},
	check: checkValkey,
}

// tlsField is a text field about TLS.
func tlsField(name, doc string, at func(*remote.TLS) *string) field {
	return field{name: name, values: "text", doc: doc, set: text(func(s *Spec) *string { return at(&s.tlsOptions) })}
}

func setAddresses(s *Spec, value json.RawMessage) error {
	var list []string
	if value[0] == '"' {
		var one string
		if err := json.Unmarshal(value, &one); err != nil {
			return errors.New("must be text")
		}
		list = strings.Split(one, ",")
	} else if json.Unmarshal(value, &list) != nil || len(list) == 0 {
		return errors.New("must be HOST:PORT, or a list of these")
	}
	for _, a := range list {
		a = strings.TrimSpace(a)
		if err := address(a); err != nil {
			return err
		}
		s.Valkey.Addresses = append(s.Valkey.Addresses, a)
	}
	return nil
}

// errAddress does not quote what is no address: it may have a password.
var errAddress = errors.New(`must be HOST:PORT, or a list of these; a URL belongs into "url", a password into "password_env"`)

// address checks HOST:PORT.
func address(a string) error {
	if strings.ContainsAny(a, "@/") {
		return errAddress
	}
	host, port, err := net.SplitHostPort(a)
	n, err2 := strconv.ParseUint(port, 10, 16)
	if err != nil || err2 != nil || host == "" || n == 0 {
		return fmt.Errorf("has %.100q, which is not HOST:PORT", a)
	}
	return nil
}

// errURL does not quote the address: it may have a password.
var errURL = errors.New("must be redis://[USER[:PASSWORD]@]HOST:PORT[/DB], or rediss:// for TLS")

func setURL(s *Spec, value json.RawMessage) error {
	var given string
	if json.Unmarshal(value, &given) != nil {
		return errURL
	}
	u, err := url.Parse(given)
	if err != nil || u.Host == "" || u.RawQuery != "" || u.Fragment != "" {
		return errURL
	}
	switch u.Scheme {
	case "redis", "valkey", "resp":
	case "rediss", "valkeys":
		s.tls = true
	default:
		return errURL
	}
	a := u.Host
	if u.Port() == "" {
		a = net.JoinHostPort(u.Hostname(), "6379")
	}
	if address(a) != nil {
		return errURL
	}
	if path := strings.Trim(u.Path, "/"); path != "" {
		if s.Valkey.DB, err = strconv.Atoi(path); err != nil || s.Valkey.DB < 0 {
			return errURL
		}
	}
	if u.User != nil {
		s.Valkey.Username = u.User.Username()
		s.Valkey.Password, _ = u.User.Password()
	}
	s.Valkey.Addresses = append(s.Valkey.Addresses, a)
	return nil
}

func checkValkey(s *Spec) (string, error) {
	if strings.ContainsAny(s.host, "@/") {
		return "", errors.New(`field "host" must be the name of a server alone; a URL belongs into "url", a password into "password_env"`)
	}
	if s.host != "" {
		if s.port == 0 {
			s.port = 6379
		}
		s.Valkey.Addresses = append(s.Valkey.Addresses, net.JoinHostPort(s.host, strconv.Itoa(s.port)))
	}
	switch {
	case len(s.Valkey.Addresses) == 0:
		return "", errors.New(`field "addresses" is missing (or "url", or "host" and "port")`)
	case s.port != 0 && s.host == "":
		return "", errors.New(`field "port" needs "host"`)
	case s.Valkey.Password != "" && s.PasswordEnv != "":
		return "", errors.New(`fields "password" and "password_env" are both given`)
	case s.Valkey.SentinelPassword != "" && s.SentinelPasswordEnv != "":
		return "", errors.New(`fields "sentinel_password" and "sentinel_password_env" are both given`)
	case !s.tls && s.tlsOptions != remote.TLS{}:
		return "", errors.New(`fields of TLS are given, but not "tls": true`)
	}
	if s.tls {
		t := s.tlsOptions
		s.Valkey.TLS = &t
	}
	s.scratch = scratch{}
	return "", nil
}
