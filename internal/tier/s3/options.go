package s3

import (
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/minio/minio-go/v7/pkg/credentials"
	"github.com/minio/minio-go/v7/pkg/s3utils"

	"github.com/holdfast-kv/holdfast/internal/tier/remote"
)

// Options say where the server is and how it is used.
type Options struct {
	// Endpoint is a URL, or host[:port] for https.
	Endpoint string
	Bucket   string // must exist
	// Prefix begins every object's name; "" is DefaultPrefix.
	Prefix string
	// Region; "" asks Amazon, and is us-east-1 elsewhere.
	Region string
	// AccessKey, SecretKey and SessionToken are static credentials. Without AccessKey they
	// come from the environment (AWS_…), from ~/.aws/credentials, or from the machine's role.
	AccessKey, SecretKey, SessionToken string
	TLS                                remote.TLS // with https
	// PathStyle puts the bucket into the path for every server; otherwise Amazon gets it in
	// the host's name.
	PathStyle    bool
	StorageClass string // "": the bucket's
	// PartBytes is how long the parts of an object are that is longer; 0 is
	// DefaultPartBytes, and 5 MiB the least.
	PartBytes int64
	// Timeout bounds one request, with an object or a part; 0 is DefaultTimeout.
	Timeout time.Duration
	// Connections is how many objects may be on their way at once, and how many short
	// requests beside them; 0 is DefaultConnections.
	Connections int
	Log         *slog.Logger // nil: none
}

// Defaults of Options.
const (
	DefaultPrefix      = "holdfast/"
	DefaultPartBytes   = 64 << 20
	DefaultTimeout     = 30 * time.Second
	DefaultConnections = 16
)

const (
	minPartBytes = 5 << 20 // of the protocol
	maxPartBytes = 5 << 30
)

// ErrOptions is wrapped by errors about settings that cannot work.
var ErrOptions = errors.New("cannot use s3")

// complete fills in defaults and gives the endpoint's parts.
func (o Options) complete() (_ Options, host string, secure bool, err error) {
	if o.Prefix == "" {
		o.Prefix = DefaultPrefix
	}
	if o.PartBytes == 0 {
		o.PartBytes = DefaultPartBytes
	}
	if o.Timeout == 0 {
		o.Timeout = DefaultTimeout
	}
	if o.Connections == 0 {
		o.Connections = DefaultConnections
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if !strings.Contains(o.Endpoint, "://") {
		o.Endpoint = "https://" + o.Endpoint
	}
	u, err := url.Parse(o.Endpoint)
	switch {
	case err != nil, u.Host == "", u.Scheme != "http" && u.Scheme != "https", strings.Trim(u.Path, "/") != "", u.User != nil, u.RawQuery != "":
		// A URL that is refused may hold a password, so it is not repeated.
		return o, "", false, fmt.Errorf("%w: the endpoint is not http(s)://host[:port]", ErrOptions)
	case s3utils.CheckValidBucketName(o.Bucket) != nil:
		return o, "", false, fmt.Errorf("%w: bucket %.100q: %w", ErrOptions, o.Bucket, s3utils.CheckValidBucketName(o.Bucket))
	case !goodPrefix(o.Prefix):
		return o, "", false, fmt.Errorf("%w: prefix %.600q has an empty, . or .. between slashes, is no UTF-8 or longer than 512 bytes", ErrOptions, o.Prefix)
	case o.AccessKey == "" && o.SecretKey != "", o.AccessKey != "" && o.SecretKey == "":
		return o, "", false, fmt.Errorf("%w: access key and secret key belong together", ErrOptions)
	case o.PartBytes < minPartBytes || o.PartBytes > maxPartBytes:
		return o, "", false, fmt.Errorf("%w: parts of %d bytes; %d to %d are possible", ErrOptions, o.PartBytes, minPartBytes, int64(maxPartBytes))
	case o.Timeout < time.Millisecond:
		return o, "", false, fmt.Errorf("%w: a timeout of %s is less than a millisecond", ErrOptions, o.Timeout)
	case o.Connections < 1 || o.Connections > 1024:
		return o, "", false, fmt.Errorf("%w: %d connections; 1 to 1024 are possible", ErrOptions, o.Connections)
	}
	if o.Region == "" && !s3utils.IsAmazonEndpoint(*u) {
		o.Region = "us-east-1"
	}
	o.Endpoint = u.Scheme + "://" + u.Host
	return o, u.Host, u.Scheme == "https", nil
}

func (o *Options) credentials() *credentials.Credentials {
	if o.AccessKey != "" {
		return credentials.NewStaticV4(o.AccessKey, o.SecretKey, o.SessionToken)
	}
	return credentials.NewChainCredentials([]credentials.Provider{
		&credentials.EnvAWS{}, &credentials.FileAWSCredentials{}, &credentials.IAM{},
	})
}

// goodPrefix refuses what servers and libraries on the way take for another name.
func goodPrefix(prefix string) bool {
	pieces := strings.Split(strings.TrimSuffix(prefix, "/"), "/")
	return len(prefix) <= 512 && utf8.ValidString(prefix) &&
		!slices.Contains(pieces, "") && !slices.Contains(pieces, ".") && !slices.Contains(pieces, "..")
}
