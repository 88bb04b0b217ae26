package adapter

import (
	"encoding/json"
	"errors"
	"net/url"
	"strings"
	"time"

	"github.com/holdfast-kv/holdfast/internal/tier/remote"
)

var s3Kind = kind{
	kind:     S3,
	doc:      "A bucket of any server that speaks Amazon's S3, for any number of servers. The bucket's own lifecycle rules bound what it keeps.",
	example:  `{"type":"s3","endpoint":"https://s3.eu-central-1.amazonaws.com","bucket":"kv-cache","region":"eu-central-1"}`,
	defaults: func(s *Spec) { s.Retries = 2 },
	fields: []field{
		{name: "endpoint", values: "URL, or HOST[:PORT] for https", doc: "The server.", set: text(func(s *Spec) *string { return &s.endpoint })},
		{name: "s3_endpoint", values: "[s3://]BUCKET.HOST, or a URL", doc: "LMCache's way of naming server and bucket in one.", set: text(func(s *Spec) *string { return &s.bucketHost })},
		{name: "bucket", aliases: []string{"s3_bucket"}, values: "text, required", doc: "The bucket, which must exist.", set: text(func(s *Spec) *string { return &s.S3.Bucket })},
		{name: "prefix", aliases: []string{"s3_prefix"}, values: "text", doc: "What every object's name begins with. Default: `holdfast/`.", set: text(func(s *Spec) *string { return &s.S3.Prefix })},
		{name: "region", aliases: []string{"s3_region"}, values: "text", doc: "Default: Amazon is asked; us-east-1 elsewhere.", set: text(func(s *Spec) *string { return &s.S3.Region })},
		{name: "access_key", aliases: []string{"aws_access_key_id"}, values: "text", doc: "Default: from AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, ~/.aws/credentials, or the machine's role; that is better than a command line.",
			set: text(func(s *Spec) *string { return &s.S3.AccessKey })},
		{name: "secret_key", aliases: []string{"aws_secret_access_key"}, values: "text", doc: "With access_key.", set: text(func(s *Spec) *string { return &s.S3.SecretKey })},
		{name: "session_token", aliases: []string{"aws_session_token"}, values: "text", doc: "With access_key, if they are for a time.", set: text(func(s *Spec) *string { return &s.S3.SessionToken })},
		{name: "tls", values: "true, false", doc: "Default: as the endpoint says, true if it does not.", set: yes(func(s *Spec, b bool) { s.secure = &b })},
		{name: "disable_tls", values: "true, false", doc: "LMCache's opposite of tls.", set: yes(func(s *Spec, b bool) { b = !b; s.secure = &b })},
		tlsField("tls_ca_file", "Authorities to trust in place of the system's, in PEM form.", func(t *remote.TLS) *string { return &t.CAFile }),
		tlsField("tls_cert_file", "Our certificate, in PEM form.", func(t *remote.TLS) *string { return &t.CertFile }),
		tlsField("tls_key_file", "Its key, in PEM form.", func(t *remote.TLS) *string { return &t.KeyFile }),
		tlsField("tls_server_name", "Name to check in place of the endpoint's.", func(t *remote.TLS) *string { return &t.ServerName }),
		{name: "tls_insecure", values: "true, false", doc: "Trust any server. Default: false.", set: yes(func(s *Spec, b bool) { s.tlsOptions.Insecure = b })},
		{name: "path_style", aliases: []string{"s3_path_style"}, values: "true, false", doc: "Put the bucket into the path also at Amazon. Default: false.", set: yes(func(s *Spec, b bool) { s.S3.PathStyle = b })},
		{name: "storage_class", values: "text", doc: "Default: the bucket's.", set: text(func(s *Spec) *string { return &s.S3.StorageClass })},
		{name: "part_size_mb", values: "MiB, 5 to 5120", doc: "Longer objects are put in parts of this length. Default: 64.",
			set: number(func(s *Spec, n float64) { s.S3.PartBytes = int64(n * (1 << 20)) }, 5, 5120)},
		{name: "request_timeout", values: "seconds", doc: "Time of one request, with an object or a part. Default: 30.",
			set: seconds(func(s *Spec) *time.Duration { return &s.S3.Timeout }, 0.001, 3600)},
		{name: "connections", aliases: []string{"s3_num_io_threads"}, values: "1 to 1024", doc: "Objects on their way at once. Default: 16.",
			set: integer(func(s *Spec) *int { return &s.S3.Connections }, 1, 1024)},
		{name: "s3_prefer_http2", values: "true, false", doc: "LMCache's HTTP/2.", set: anything, without: "HTTP/1.1 with several connections is faster for objects of this size"},
		{name: "s3_enable_s3express", values: "false", doc: "LMCache's S3 Express. Refused if true.", set: refuseExpress},
		{name: "max_capacity_gb", values: "GiB", doc: "LMCache's account of what is stored.", set: anything, without: "a bucket has no limit; its lifecycle rules delete what is old"},
	},
	check: checkS3,
}

func refuseExpress(s *Spec, value json.RawMessage) error {
	on := false
	if err := yes(func(_ *Spec, b bool) { on = b })(s, value); err != nil {
		return err
	}
	if on {
		return errors.New("is true, but directory buckets (S3 Express) are signed for in a way that is not served; use a general purpose bucket")
	}
	return nil
}

// errEndpoint does not quote the address: it may have a password.
var errEndpoint = errors.New(`field "endpoint" must be http://HOST[:PORT], https://HOST[:PORT] or HOST[:PORT]`)

func checkS3(s *Spec) (string, error) {
	given := s.endpoint
	if given == "" {
		given = s.bucketHost
	}
	scheme, host, found := strings.Cut(given, "://")
	if !found {
		scheme, host = "", given
	}
	host = strings.TrimSuffix(host, "/")
	if s.endpoint == "" && s.bucketHost != "" {
		host = takeBucket(s, host)
	}
	if u, err := url.Parse("https://" + host); host == "" || err != nil || u.Host != host {
		if given == "" {
			return "", errors.New(`field "endpoint" is missing`)
		}
		return "", errEndpoint
	}
	switch {
	case s.endpoint != "" && s.bucketHost != "":
		return "", errors.New(`fields "endpoint" and "s3_endpoint" are both given`)
	case s.S3.Bucket == "":
		return "", errors.New(`field "bucket" is missing`)
	case (s.S3.AccessKey == "") != (s.S3.SecretKey == ""):
		return "", errors.New(`fields "access_key" and "secret_key" belong together`)
	}
	switch scheme {
	case "http", "https":
		if s.secure != nil && *s.secure != (scheme == "https") {
			return "", errors.New("the endpoint's scheme and the field about TLS contradict each other")
		}
	case "", "s3":
		if scheme = "https"; s.secure != nil && !*s.secure {
			scheme = "http"
		}
	default:
		return "", errEndpoint
	}
	if scheme == "http" && s.tlsOptions != (remote.TLS{}) {
		return "", errors.New("fields of TLS are given, but the endpoint is without TLS")
	}
	s.S3.Endpoint, s.S3.TLS = scheme+"://"+host, s.tlsOptions
	s.scratch = scratch{}
	return "", nil
}

// takeBucket takes the bucket from BUCKET.HOST, unless a field names it.
func takeBucket(s *Spec, host string) string {
	if s.S3.Bucket != "" {
		return strings.TrimPrefix(host, s.S3.Bucket+".")
	}
	bucket, rest, found := strings.Cut(host, ".")
	if !found {
		return host
	}
	s.S3.Bucket = bucket
	return rest
}
