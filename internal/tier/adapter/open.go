package adapter

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/holdfast-kv/holdfast/internal/tier"
	"github.com/holdfast-kv/holdfast/internal/tier/decorate"
	"github.com/holdfast-kv/holdfast/internal/tier/disk"
	"github.com/holdfast-kv/holdfast/internal/tier/s3"
	"github.com/holdfast-kv/holdfast/internal/tier/valkey"
)

// Env is what stores are opened with.
type Env struct {
	Log    *slog.Logger
	Meters *decorate.Meters         // nil: no metrics
	Getenv func(name string) string // os.Getenv, of a process
}

// Open opens the store and puts its decorators around it: from the inside the bounds on calls and
// bytes, the time of an attempt, the attempts, a circuit breaker, and the metrics, under the
// tier's name. It fails if the settings cannot work; a server that does not answer now is tried
// again later, and its store is failing until then.
func Open(ctx context.Context, s Spec, name string, env Env) (tier.Store, error) {
	store, err := open(ctx, s, name, env)
	if err != nil {
		return nil, fmt.Errorf("open tier %s: %w", name, err)
	}
	return decorated(store, s, name, env), nil
}

func open(ctx context.Context, s Spec, name string, env Env) (tier.Store, error) {
	log := env.Log.With("tier", name)
	switch s.Kind {
	case Disk:
		o := s.Disk
		o.Log = log
		return opened(disk.New(o))
	case Valkey:
		o := s.Valkey
		o.Log = log
		for _, secret := range []struct {
			field    string
			variable string
			value    *string
		}{{"password_env", s.PasswordEnv, &o.Password}, {"sentinel_password_env", s.SentinelPasswordEnv, &o.SentinelPassword}} {
			if secret.variable == "" {
				continue
			}
			if *secret.value = env.Getenv(secret.variable); *secret.value == "" {
				return nil, fmt.Errorf("the variable %q of field %q is not set", secret.variable, secret.field)
			}
		}
		return opened(valkey.New(ctx, o))
	case S3:
		o := s.S3
		o.Log = log
		return opened(s3.New(ctx, o))
	}
	return nil, fmt.Errorf("%w: kind %q", ErrSpec, s.Kind)
}

// opened makes an interface of a store, and of no store none.
func opened[S tier.Store](store S, err error) (tier.Store, error) {
	if err != nil {
		return nil, err
	}
	return store, nil
}

func decorated(store tier.Store, s Spec, name string, env Env) tier.Store {
	if s.Concurrency > 0 {
		store = decorate.Concurrency(store, s.Concurrency)
	}
	if s.RateLimit > 0 {
		store = decorate.RateLimit(store, s.RateLimit)
	}
	if s.Timeout > 0 {
		store = decorate.Timeout(store, s.Timeout)
	}
	if s.Retries > 0 {
		store = decorate.Retry(store, decorate.Retries{Attempts: s.Retries})
	}
	store = decorate.Breaker(store, decorate.Breaks{})
	if env.Meters != nil {
		store = decorate.Metrics(store, env.Meters, name)
	}
	return store
}
