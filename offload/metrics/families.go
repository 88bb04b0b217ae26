package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/holdfast-kv/holdfast/offload"
	"github.com/holdfast-kv/holdfast/offload/worker"
)

var schedulerFamilies = []family[offload.Stats]{
	counter(nil, "load_requests", "Loads dispatched.", func(s *offload.Stats) uint64 { return s.LoadRequests }),
	counter(nil, "loaded_tokens", "Tokens loaded on every rank.", func(s *offload.Stats) uint64 { return s.LoadedTokens }),
	counter(nil, "load_failures", "Loads that failed on some rank.", func(s *offload.Stats) uint64 { return s.LoadFailures }),
	counter(nil, "save_requests", "Saves dispatched.", func(s *offload.Stats) uint64 { return s.SaveRequests }),
	counter(nil, "saved_tokens", "Tokens saved on every rank.", func(s *offload.Stats) uint64 { return s.SavedTokens }),
	counter(nil, "save_failures", "Saves that failed on some rank.", func(s *offload.Stats) uint64 { return s.SaveFailures }),
	counter(nil, "save_retries", "Failed saves whose tokens are saved again.", func(s *offload.Stats) uint64 { return s.SaveRetries }),
	counter(nil, "dropped_saves", "Failed saves of finished requests.", func(s *offload.Stats) uint64 { return s.DroppedSaves }),
	counter(nil, "lookups", "Questions to the store.", func(s *offload.Stats) uint64 { return s.Lookups }),
	counter(nil, "lookup_failures", "Questions that the store did not answer.", func(s *offload.Stats) uint64 { return s.LookupFailures }),
	counter(nil, "unpin_failures", "Pins or sessions that the store did not take back at once.", func(s *offload.Stats) uint64 { return s.UnpinFailures }),
	counter(nil, "suppressed_load_retries", "Questions not asked since a load of the request had failed.", func(s *offload.Stats) uint64 { return s.SuppressedLoadRetries }),
	counter(nil, "lookups_skipped_by_memo", "Questions answered from memory.", func(s *offload.Stats) uint64 { return s.LookupsSkippedByMemo }),
	counter(nil, "early_released_blocks", "Blocks freed at the end of a request although a save went on.", func(s *offload.Stats) uint64 { return s.EarlyReleasedBlocks }),
	counter(nil, "leased_source_blocks", "Blocks leased to saves.", func(s *offload.Stats) uint64 { return s.LeasedSourceBlocks }),
	counter(nil, "source_safe_released_blocks", "Leased blocks freed before their save had ended.", func(s *offload.Stats) uint64 { return s.SourceSafeReleasedBlocks }),
	counter(nil, "abnormal_lease_reclaims", "Leases that ended without a report: always 0.", func(s *offload.Stats) uint64 { return s.AbnormalLeaseReclaims }),
	counter(nil, "truncated_late_saves", "Last saves that were cut since blocks were evicted.", func(s *offload.Stats) uint64 { return s.TruncatedLateSaves }),
	counter(nil, "unbacked_saves", "Saves skipped since their blocks were gone.", func(s *offload.Stats) uint64 { return s.UnbackedSaves }),
	counter(nil, "unfenced_saves", "Saves that read without waiting for the producer: always 0.", func(s *offload.Stats) uint64 { return s.UnfencedSaves }),
	counter(nil, "stray_reports", "Reports of operations that are not active.", func(s *offload.Stats) uint64 { return s.StrayReports }),
	counter(nil, "late_answers", "Answers to earlier polls than the latest.", func(s *offload.Stats) uint64 { return s.LateAnswers }),
	counter(nil, "doubled_answers", "Answers that came again.", func(s *offload.Stats) uint64 { return s.DoubledAnswers }),
	counter(nil, "invariant_violations", "Defects: always 0.", func(s *offload.Stats) uint64 { return s.InvariantViolations }),
	gauge(nil, "loads_pending", "Loads dispatched or due, without a result.", func(s *offload.Stats) int { return s.LoadsPending }),
	gauge(nil, "saves_pending", "Saves without a result.", func(s *offload.Stats) int { return s.SavesPending }),
	gauge(nil, "saves_unproven", "Failed saves that some rank may still read for.", func(s *offload.Stats) int { return s.SavesUnproven }),
	gauge(nil, "blocks_waiting_for_store", "Blocks that nobody reads any more, of saves without a result.", func(s *offload.Stats) int { return s.BlocksWaitingForStore }),
	gauge(nil, "leased_blocks", "Blocks that saves hold for finished requests.", func(s *offload.Stats) int { return s.LeasedBlocks }),
	gauge(nil, "tracked_requests", "Requests with open books.", func(s *offload.Stats) int { return s.TrackedRequests }),
	{
		prometheus.NewDesc("holdfast_offload_load_decisions_total", "Why loads were or were not begun.", []string{"reason"}, nil),
		prometheus.CounterValue,
		func(s *offload.Stats, emit func(float64, ...string)) {
			for reason, n := range s.Decisions {
				emit(float64(n), string(reason))
			}
		},
	},
}

func rankFamilies(rank prometheus.Labels) []family[worker.Stats] {
	return []family[worker.Stats]{
		counter(rank, "rank_load_requests", "Loads that the rank was given.", func(s *worker.Stats) uint64 { return s.LoadRequests }),
		counter(rank, "rank_loaded_tokens", "Tokens loaded.", func(s *worker.Stats) uint64 { return s.LoadedTokens }),
		counter(rank, "rank_loaded_bytes", "Bytes loaded.", func(s *worker.Stats) uint64 { return s.LoadedBytes }),
		counter(rank, "rank_load_failures", "Loads that failed.", func(s *worker.Stats) uint64 { return s.LoadFailures }),
		counter(rank, "rank_save_requests", "Saves that the rank was given.", func(s *worker.Stats) uint64 { return s.SaveRequests }),
		counter(rank, "rank_saved_tokens", "Tokens saved.", func(s *worker.Stats) uint64 { return s.SavedTokens }),
		counter(rank, "rank_saved_bytes", "Bytes saved; what the store had is not among them.", func(s *worker.Stats) uint64 { return s.SavedBytes }),
		counter(rank, "rank_saves_rejected", "Saves that failed before their source was read.", func(s *worker.Stats) uint64 { return s.SavesRejected }),
		counter(rank, "rank_save_failures", "Saves that failed after their source may have been read.", func(s *worker.Stats) uint64 { return s.SaveFailures }),
		counter(rank, "producer_fenced", "Saves whose pack stream waited for the producer event: all that read a block.", func(s *worker.Stats) uint64 { return s.ProducerFenced }),
		counter(rank, "rank_replayed", "Operations dispatched again and ignored.", func(s *worker.Stats) uint64 { return s.Replayed }),
		gauge(rank, "rank_saves_pending", "Saves without a terminal.", func(s *worker.Stats) int { return s.SavesPending }),
		gauge(rank, "rank_loads_pending", "Loads without a terminal.", func(s *worker.Stats) int { return s.LoadsPending }),
		gauge(rank, "rank_saves_queued", "Saves that no thread has begun.", func(s *worker.Stats) int { return s.SavesQueued }),
		gauge(rank, "rank_loads_queued", "Loads that no thread has begun.", func(s *worker.Stats) int { return s.LoadsQueued }),
		gauge(rank, "rank_quarantined_bytes", "Staging lost since nothing proved that the device is done with it.", func(s *worker.Stats) int { return int(s.QuarantinedBytes) }),
	}
}
