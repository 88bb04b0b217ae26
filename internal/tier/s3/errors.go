package s3

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"syscall"

	"github.com/minio/minio-go/v7"

	"github.com/holdfast-kv/holdfast/internal/tier"
	"github.com/holdfast-kv/holdfast/internal/tier/remote"
)

// failure says what an error of the client means to callers.
func (s *Store) failure(ctx context.Context, what string, err error) error {
	what = "s3: " + what
	var reply minio.ErrorResponse
	if !errors.As(err, &reply) {
		if ended := remote.Ended(ctx, what); ended != nil {
			return ended
		}
		// The text alone: a deadline of the request is not the caller's.
		if errors.Is(err, context.DeadlineExceeded) {
			return tier.Passing(fmt.Errorf("%s: %s: no answer within %s", what, s.o.Endpoint, s.o.Timeout))
		}
		return tier.Passing(fmt.Errorf("%s: %s: %v", what, s.o.Endpoint, err))
	}
	said := fmt.Sprintf("%s (%s, status %d)", reply.Message, reply.Code, reply.StatusCode)
	switch reply.Code {
	case minio.NoSuchBucket:
		return s.noBucket(what)
	case minio.NoSuchKey:
		return fmt.Errorf("%s: %w", what, tier.ErrAbsent)
	case "QuotaExceeded", "XMinioAdminBucketQuotaExceeded", "XMinioStorageFull", "InsufficientStorage":
		return fmt.Errorf("%s: %w: %s", what, tier.ErrFull, said)
	case "SlowDown", "ServiceUnavailable", "InternalError", "RequestTimeout", "OperationAborted", "ConditionalRequestConflict",
		"ExpiredToken", "Throttling", "RequestLimitExceeded":
		return tier.Passing(fmt.Errorf("%s: %s", what, said))
	}
	switch status := reply.StatusCode; {
	case status == http.StatusInsufficientStorage:
		return fmt.Errorf("%s: %w: %s", what, tier.ErrFull, said)
	case status >= 500 && status != http.StatusNotImplemented,
		status == http.StatusTooManyRequests, status == http.StatusRequestTimeout, status == http.StatusConflict:
		return tier.Passing(fmt.Errorf("%s: %s", what, said))
	case status == http.StatusUnauthorized, status == http.StatusForbidden:
		return fmt.Errorf("%s: %s: %w: %s; check keys, permissions and the clock", what, s.where(), remote.ErrRefused, said)
	case status >= 300 && status < 400:
		return fmt.Errorf("%s: %s: %w: %s; check endpoint and region", what, s.where(), remote.ErrRefused, said)
	}
	return fmt.Errorf("%s: %s", what, said)
}

func (s *Store) noBucket(what string) error {
	return fmt.Errorf("%s: %w: %s has no bucket %q; create it, e.g. aws --endpoint-url %s s3 mb s3://%s",
		what, remote.ErrRefused, s.o.Endpoint, s.o.Bucket, s.o.Endpoint, s.o.Bucket)
}

// status is the HTTP status of an error that the server gave, 0 for others.
func status(err error) int {
	var reply minio.ErrorResponse
	errors.As(err, &reply)
	return reply.StatusCode
}

// isCut reports whether the server closed the connection on a request, or on the proxy that
// passed it: seen by what writes (reset, pipe), or after what reads has seen it (closed). For one
// of the causes the client has a text of its own.
func isCut(err error) bool {
	return errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) || errors.Is(err, net.ErrClosed) ||
		status(err) == http.StatusBadGateway ||
		err != nil && strings.Contains(err.Error(), "Connection closed by foreign host")
}
