// Package metrics shows the connector's statistics to Prometheus: one collector beside the
// scheduler half, and one beside each rank's worker half, in whatever process they are.
//
//	registry.MustRegister(metrics.Scheduler(latest), metrics.Rank(0, half.Stats))
//
// Two figures must stay 0, and are worth an alarm: holdfast_offload_unfenced_saves_total and
// holdfast_offload_invariant_violations_total.
package metrics
