package client

import "context"

// AwaitLearned waits until the server has said what it can do.
func (w *Worker) AwaitLearned(ctx context.Context) {
	w.client.Hello(ctx) // asked after the worker's own, and answered after it
}
