package qualify

// claims are all rows, in the order in which they run.
var claims = []claim{
	{"producer-fence", "a save's pack stream waits for exactly one live producer event, before any other work, and no host waits", producerFence},
	{"completions", "a save ends twice: its store is terminal on every rank, and its source is quiescent", completions},
	{"reload", "after the pool is cleared, a load gives back K, V and scales bit for bit", func(r *row) { reload(r, gqa()) }},
	{"reload-mla", "the same for MLA: latent plane and index cache", func(r *row) { reload(r, mla()) }},
	{"shared-event", "two saves of one step share one producer event", sharedEvent},
	{"event-failure", "an event that cannot be recorded rejects the step's saves and no load; the watermark comes back; the saves succeed later", eventFailure},
	{"quorum", "one rank of two fails after submit: nothing is retried or freed before every rank is quiescent, then the save is retried", quorum},
	{"retired", "a save that fails after its request's end is dropped, and its blocks are never read again", retired},
	{"early-release", "blocks of an ended request come back chunk by chunk while its save goes on", earlyRelease},
	{"failed-load", "a load that fails is recomputed in place from the HBM frontier, once, and the result is right", failedLoad},
	{"unprovable", "without proof nothing is freed, however much time passes; at the deadline the engine stops with a typed error", unprovable},
	{"racing-close", "a worker half that is closed while work arrives gives every dispatch exactly one terminal", racingClose},
	{"model", "a model answers with the same tokens and the same bits of the logits cold, from HBM and from the store", modelRun},
	{"stale-saves", "with the producer wait no save is stale in 40 attempts", staleSaves},
}
