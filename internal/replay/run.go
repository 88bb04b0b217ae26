package replay

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/holdfast-kv/holdfast/internal/workload"
)

// Run plays the trace and reports. When ctx ends it sends no more requests, lets those in
// flight finish, and reports what there is as interrupted. An error says that the
// replay could not begin or could not go on; the report then covers what was played.
// Wrong bytes and unbalanced books are no error of Run: see Report.OK.
//
// The progress may be nil, and may be read at any time.
func Run(ctx context.Context, trace []workload.Request, o Options, p *Progress) (Report, error) {
	o, err := o.withDefaults()
	if err != nil {
		return Report{}, err
	}
	if len(trace) == 0 {
		return Report{}, fmt.Errorf("%w: the trace has no requests", ErrOptions)
	}
	if p == nil {
		p = new(Progress)
	}
	var server target = &remote{endpoint: o.Server, statusURL: o.StatusURL}
	if o.Server == "" {
		e, err := startEmbedded(&o)
		if err != nil {
			return Report{}, fmt.Errorf("start a server: %w", err)
		}
		server = e
	}
	report, err := runOn(ctx, server, trace, o, p)
	report.Interrupted = ctx.Err() != nil
	return report, err
}

// target is the server that is played against.
type target interface {
	// start returns the endpoint to connect to.
	start(ctx context.Context) (endpoint string, err error)
	// finish is called when every connection has been closed.
	finish(ctx context.Context) (serverFigures, error)
}

func runOn(ctx context.Context, s target, trace []workload.Request, o Options, p *Progress) (Report, error) {
	endpoint, err := s.start(ctx)
	if err != nil {
		return Report{}, err
	}
	player, err := connect(ctx, endpoint, o, p)
	if err != nil {
		_, stopErr := s.finish(ctx)
		return Report{}, errors.Join(err, stopErr)
	}
	p.begin(len(trace))
	begin := time.Now()
	err = player.play(ctx, trace)
	elapsed := time.Since(begin)
	transport := player.transport()
	err = errors.Join(err, player.close())
	figures, stopErr := s.finish(context.WithoutCancel(ctx))
	report := player.report(elapsed, transport)
	report.TraceRequests = len(trace)
	report.addServer(figures, stopErr)
	return report, err
}
