package client_test

import (
	"context"
	"fmt"
	"log"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/holdfast-kv/holdfast/client"
	"github.com/holdfast-kv/holdfast/internal/arena"
	"github.com/holdfast-kv/holdfast/internal/cache"
	"github.com/holdfast-kv/holdfast/internal/server"
	"github.com/holdfast-kv/holdfast/internal/zmtp"
)

// An engine saves the KV of a prompt and, for a later request with the same prompt, loads
// it back instead of computing it.
func Example() {
	endpoint, stop := startExampleServer()
	defer stop()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()

	// The scheduler and each worker have a connection of their own.
	scheduler, err := client.Dial(ctx, endpoint, client.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer scheduler.Close()
	connection, err := client.Dial(ctx, endpoint, client.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer connection.Close()
	worker, err := connection.Register(ctx, client.Registration{
		Instance: 4711, Model: "llama", World: 1, BlockSize: 16, Layers: 2, Hidden: 64, DType: "bfloat16",
	})
	if err != nil {
		log.Fatal(err)
	}
	defer worker.Unregister(ctx)

	computed := make([]byte, 2*2*scheduler.ChunkSize()*64*2) // planes × layers × tokens × hidden × bytes of an element
	loadedKV := make([]byte, len(computed))
	prompt := make([]uint32, 2*scheduler.ChunkSize())
	key := client.Key{Model: "llama", World: 1, Tokens: prompt, End: len(prompt), Request: "request-1", Readers: 1}

	// The first request finds nothing, and saves what it has computed.
	if err := scheduler.Lookup(ctx, &key); err != nil {
		log.Fatal(err)
	}
	chunks, _, err := scheduler.WaitPrefetch(ctx, key.Request, time.Second)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("first request:", chunks, "chunks")
	stored, err := worker.StoreSummed(ctx, &key, func(chunk int, dst []byte) (client.Sum, error) {
		computed[0] = byte(100 + chunk) // the chunk's KV, as dst has it: [2, layers, tokens, hidden]
		return client.CopySum(dst, computed), nil
	})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("stored:", stored)
	scheduler.EndSession(ctx, key.Request)

	// The second finds both chunks, which are leased to it until it has loaded them.
	key.Request = "request-2"
	if err := scheduler.Lookup(ctx, &key); err != nil {
		log.Fatal(err)
	}
	chunks, _, err = scheduler.WaitPrefetch(ctx, key.Request, time.Second)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("second request:", chunks, "chunks")
	loaded, err := worker.Retrieve(ctx, &key, func(chunk int, src []byte) error {
		client.Copy(loadedKV, src) // src is the pool's, and good only until we return
		fmt.Println("chunk", chunk, "begins with", loadedKV[0])
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("loaded:", loaded)
	scheduler.EndSession(ctx, key.Request)

	// Output:
	// first request: 0 chunks
	// stored: true
	// second request: 2 chunks
	// chunk 0 begins with 100
	// chunk 1 begins with 101
	// loaded: true
}

// startExampleServer is `holdfast serve`, small and within this process.
func startExampleServer() (endpoint string, stop func()) {
	dir, err := os.MkdirTemp("", "holdfast")
	if err != nil {
		log.Fatal(err)
	}
	pool, err := arena.Create(arena.PoolOptions{Size: 1 << 20})
	if err != nil {
		log.Fatal(err)
	}
	c, err := cache.New(cache.Config{Pool: pool})
	if err != nil {
		log.Fatal(err)
	}
	s := server.New(server.Config{Cache: c, Pool: pool, ChunkSize: 256, Log: slog.New(slog.DiscardHandler)})
	l, err := zmtp.Listen("ipc://"+filepath.Join(dir, "socket"), zmtp.Options{SocketType: zmtp.Router})
	if err != nil {
		log.Fatal(err)
	}
	go s.Serve(l)
	return l.Endpoint(), func() {
		s.Shutdown(context.Background())
		c.Close()
		pool.Close()
		os.RemoveAll(dir)
	}
}
