package valkey

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/zeebo/xxh3"
	"golang.org/x/sys/unix"

	"github.com/holdfast-kv/holdfast/internal/tier"
	"github.com/holdfast-kv/holdfast/internal/tier/testserver"
)

// objects makes n objects of a size.
func objects(n, size int) []tier.Object {
	random := rand.NewChaCha8([32]byte{byte(n)})
	objs := make([]tier.Object, n)
	for i := range objs {
		mem := make([]byte, size)
		_, _ = random.Read(mem)
		objs[i] = tier.Object{Mem: mem, Sum: xxh3.Hash128(mem)}
		_, _ = random.Read(objs[i].Key.Chunk[:])
	}
	return objs
}

// bare moves the same bytes with the client alone, as it comes, in the same exchanges.
type bare struct {
	client rueidis.Client
	names  []string
	values []string
}

func (b *bare) exchanges(size int, command func(i int) rueidis.Completed, take func(reply rueidis.RedisResult) error) error {
	each := max(1, exchangeBytes/(size+tier.HeaderBytes))
	errs := make([]error, len(b.names))
	var all sync.WaitGroup
	for from := 0; from < len(b.names); from += each {
		all.Go(func() {
			var commands []rueidis.Completed
			for i := from; i < min(from+each, len(b.names)); i++ {
				commands = append(commands, command(i))
			}
			for j, reply := range b.client.DoMulti(context.Background(), commands...) {
				errs[from+j] = take(reply)
			}
		})
	}
	all.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

func (b *bare) set(i int) rueidis.Completed {
	return b.client.B().Set().Key(b.names[i]).Value(b.values[i]).Build()
}

func (b *bare) get(i int) rueidis.Completed { return b.client.B().Get().Key(b.names[i]).Build() }

// measure is what one way of moving took.
type measure struct {
	rounds []time.Duration
	cpu    time.Duration // of this process, all rounds together
}

func (m *measure) take(move func() error) error {
	var before, after unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_SELF, &before)
	began := time.Now()
	err := move()
	m.rounds = append(m.rounds, time.Since(began))
	_ = unix.Getrusage(unix.RUSAGE_SELF, &after)
	m.cpu += time.Duration(after.Utime.Nano() + after.Stime.Nano() - before.Utime.Nano() - before.Stime.Nano())
	return err
}

func (m *measure) median() time.Duration {
	slices.Sort(m.rounds)
	return m.rounds[len(m.rounds)/2]
}

// BenchmarkValkey compares the store, which verifies, with the bare client, which does not; both
// move 16 MiB a round to a server on loopback. x-bare is the quotient of their speeds in the
// median round, cpu-x-bare that of the processor time of this process.
func BenchmarkValkey(b *testing.B) {
	server := testserver.Redis(b)
	for _, size := range []int{64 << 10, 1 << 20, 4 << 20} {
		n := 16 << 20 / size
		b.Run(fmt.Sprintf("%dKiB", size>>10), func(b *testing.B) {
			client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{server.Addr}, DisableCache: true})
			if err != nil {
				b.Fatal(err)
			}
			defer client.Close()
			s, objs := open(b, Options{Addresses: addresses(server)}), objects(n, size)
			raw := &bare{client: client}
			targets := make([]tier.Target, n)
			for i, o := range objs {
				raw.names = append(raw.names, fmt.Sprint("bare:", i))
				raw.values = append(raw.values, rueidis.BinaryString(o.Mem))
				targets[i] = tier.Target{Key: o.Key, Mem: make([]byte, size)}
			}
			var all [4]measure
			first := func(errs []error) error {
				for _, err := range errs {
					if err != nil {
						return err
					}
				}
				return nil
			}
			ctx := context.Background()
			moves := [4]func() error{
				func() error { return first(s.Put(ctx, objs)) },
				func() error {
					return raw.exchanges(size, raw.set, func(r rueidis.RedisResult) error { return r.Error() })
				},
				func() error { return first(s.Get(ctx, targets)) },
				func() error {
					return raw.exchanges(size, raw.get, func(r rueidis.RedisResult) error { _, err := r.ToString(); return err })
				},
			}
			for round := 0; b.Loop(); round++ {
				server.Do("FLUSHALL", "SYNC")
				for i := range moves {
					i ^= round % 2 // each is first in every other round
					if err := all[i].take(moves[i]); err != nil {
						b.Fatal(err)
					}
				}
			}
			speed := func(i int) float64 { return float64(n*size) / all[i].median().Seconds() / 1e9 }
			b.ReportMetric(speed(0), "put-GB/s")
			b.ReportMetric(speed(2), "get-GB/s")
			b.ReportMetric(speed(0)/speed(1), "put-x-bare")
			b.ReportMetric(speed(2)/speed(3), "get-x-bare")
			b.ReportMetric(all[0].cpu.Seconds()/all[1].cpu.Seconds(), "put-cpu-x-bare")
			b.ReportMetric(all[2].cpu.Seconds()/all[3].cpu.Seconds(), "get-cpu-x-bare")
			b.ReportMetric(0, "ns/op")
		})
	}
}
