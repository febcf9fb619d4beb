#include "shoal/train/config/conditions.h"
#include "shoal/train/config/key_lister.h"
#include "shoal/wire/rail_count.h"

namespace shoal::train {

void list_parallelism_keys(std::vector<ConfigKey>& keys) {
  using P = ParallelismSection;
  Lister<P>(keys, "parallelism", &JobConfig::parallelism)
      .key("ranks", &P::ranks, between(1, 4096),
           "how many ranks Shoal's own launcher starts on this host (--nproc); under another "
           "launcher its number counts")
      .key("in_process", &P::in_process, any(),
           "ranks are threads of one process instead of processes (--in-process)")
      .key("device", &P::device,
           "where ranks compute; cuda: each on a GPU of its host (its number there modulo the "
           "number of GPUs), with a LibTorch that has CUDA")
      .key("threads_per_rank", &P::threads_per_rank, between(0, 4096),
           "threads that compute in one rank; 0: cores of the host / its ranks")
      .key("pin_cores", &P::pin_cores, any(), "each rank keeps to its own cores")
      .key("arena", &P::arena, any(),
           "tensors live in memory that all ranks of the host read in place; off gives the same "
           "bits, slower")
      .key("memory_limit_mb", &P::memory_limit_mb, at_least(0),
           "what the tensors of one rank may take in MB: a job that needs more is refused before "
           "it starts; 0: its share of what the host has free")
      .key("transport", &P::transport,
           "what carries the bytes between ranks; auto: shared memory inside a host, TCP between "
           "hosts; tcp: TCP alone; mpi: MPI, under mpirun")
      .key("interface", &P::interface, any(),
           "TCP: name or address prefix of the network interface; empty: the one that leads to "
           "rank 0")
      .key("ports", &P::ports, any(),
           "TCP: on which ports a rank listens, \"7000-7100\": the first that is free; 0: "
           "whichever the system gives")
      .key("advertise", &P::advertise, any(),
           "TCP: where other ranks reach those of this host, behind an address translator: "
           "\"203.0.113.7\", at the ports on which they listen, or \"203.0.113.7:9000\", where the "
           "first port of `ports` is 9000; each host has its own (--set); empty: where they listen")
      .key(
          "rails", &P::rails, between(0, wire::kMostRails),
          "TCP: connections between two ranks, which share the work of every large message; of two "
          "ranks the higher one's number counts; 0: one below a round trip of 5 ms, else one more "
          "for every 12 ms of it")
      .key(
          "silence_s", &P::silence_s, between(0, 86400),
          "TCP: seconds after which a rank is lost from which nothing comes, because it is stopped "
          "or the link is cut; ranks say something every 0.4 seconds; 0: 2 and 20 round trips, at "
          "most 15")
      .key("tls", &P::tls,
           "TCP: connections that are encrypted and signed (TLS 1.3); auto: those that leave the "
           "host; on: all; off: none, so that who is on the way can read and change what ranks "
           "send; the same on all ranks")
      .key(
          "routes", &P::routes,
          "TCP: natural: rings go in the order of ranks; measured: 3 to 32 ranks on hosts of their "
          "own, of which some are far apart, measure the links between them when they meet, which "
          "takes up to about 5 s; where these are uneven, rings go round the slow ones, and sums "
          "have the bits of what was measured then: another start may have others; the same on "
          "all ranks")
      .key("algorithms", &P::algorithms, any(),
           "TCP: algorithms in place of those that are predicted to be fastest: "
           "\"all_reduce=ring,broadcast=direct\"; `shoal bench collectives "
           "--print-choice` lists them")
      .key("link_costs", &P::link_costs, any(),
           "TCP: a cluster file that `shoal plan calibrate` wrote: algorithms are chosen by what "
           "messages cost according to its [tcp], as rank 0 "
           "reads it; empty: by defaults")
      .key("in_rank_order", &P::in_rank_order, any(),
           "sums are taken in the order of ranks, so that they have the same bits on one host, on "
           "several and over TCP, by every algorithm; shared memory always does, between hosts it "
           "costs time; not with transport = \"mpi\", where MPI chooses the order")
      .key("bucket_mb", &P::bucket_mb, {0, 65536, true, {}},
           "size of a gradient bucket in MB where gradients are copied to be sent: processes with "
           "arena = false, TCP or MPI")
      .only_with({of_buckets})
      .key("zero_stage", &P::zero_stage, between(0, 3),
           "what data-parallel ranks hold shards of: 0 nothing, 1 the optimizer's state, 2 "
           "gradients too, 3 parameters too (FSDP)")
      .key("data_parallel_shard_degree", &P::data_parallel_shard_degree, between(-1, 4096),
           "zero_stage 1 to 3: data-parallel ranks among which state is cut; -1: ranks / "
           "(the other degrees)")
      .only_with({of_shards})
      .key("data_parallel_replicate_degree", &P::data_parallel_replicate_degree, between(1, 4096),
           "zero_stage 1 to 3: copies of the whole state, each cut among its own ranks (hybrid "
           "sharding)")
      .only_with({of_shards})
      .key("tensor_parallel_degree", &P::tensor_parallel_degree, between(1, 4096),
           "ranks that divide the matrices of a transformer and the residual stream between its "
           "blocks among them, and train on the same samples; neighbours in the numbering of "
           "ranks")
      .key("layouts", &P::layouts, any(),
           "how the ranks of tensor_parallel_degree divide modules, in front of what they do by "
           "default: [\"blocks.0.mlp.*: weight replicate\"]; the first rule that fits a module "
           "counts, and `shoal plan --recipe JOB` prints all of them")
      .only_with({of_tensor_parallel})
      .key("expert_parallel_degree", &P::expert_parallel_degree, between(1, 4096),
           "ranks that divide the experts of a mixture among them: consecutive ranks of a pipeline "
           "stage, whichever other axes they lie on; tokens travel to their experts")
      .key("context_parallel_degree", &P::context_parallel_degree, between(1, 4096),
           "ranks that divide the columns of every sequence of a transformer among them, and hold "
           "the same parameters: for sequences whose activations one rank cannot hold")
      .key("context_parallel_method", &P::context_parallel_method,
           "how they compute attention: keys and values travel from rank to rank, or each rank "
           "gets whole sequences of its part of the key-value heads")
      .only_with({of_context_ranks})
      .key("pipeline_parallel_degree", &P::pipeline_parallel_degree, between(1, 4096),
           "ranks that divide the units of a transformer (embedding, blocks, head) in stages; "
           "micro-batches go through them one behind the other")
      .key("pipeline_parallel_schedule", &P::pipeline_parallel_schedule, any(),
           "the order of passes: in_turn, gpipe, 1f1b, interleaved, zb-h1, zb-h2, zb-v or "
           "dualpipe-v")
      .only_with({of_a_pipeline})
      .key("pipeline_parallel_schedule_csv", &P::pipeline_parallel_schedule_csv, any(),
           "a file with the order of passes, instead of pipeline_parallel_schedule: one line a "
           "rank, as PyTorch writes them (0F0,0F1,0B0 ...)")
      .only_with({of_a_pipeline})
      .key("pipeline_parallel_virtual_stages", &P::pipeline_parallel_virtual_stages, between(1, 64),
           "pipeline_parallel_schedule = \"interleaved\": stages of each rank")
      .only_with({of_a_pipeline})
      .key("pipeline_parallel_stage_units", &P::pipeline_parallel_stage_units, at_least(1),
           "units of each stage, the embedding and the head among them: [9, 5]; empty: divided as "
           "pipeline_parallel_stages_by says")
      .only_with({of_a_pipeline})
      .key("pipeline_parallel_stages_by", &P::pipeline_parallel_stages_by,
           "units are divided so that the most expensive stage costs least, or so that their "
           "numbers are even")
      .only_with({of_a_pipeline, without_stage_units})
      .key("pipeline_parallel_post_validation", &P::pipeline_parallel_post_validation, any(),
           "a rank does not wait at the end of a step until all ranks know the norm of the "
           "gradient: it updates as if nothing were clipped and goes on, and takes the update back "
           "where that was wrong; it keeps a copy of its parameters and their state for that")
      .only_with({of_a_pipeline})
      .key("pipeline_parallel_gathered_stages", &P::pipeline_parallel_gathered_stages,
           between(0, 64),
           "zero_stage 3 where parameters are gathered: so many stages of a rank are whole at a "
           "time; 0: all, each from its first to its last use in a step")
      .only_with({of_a_pipeline})
      .key("gather_ahead", &P::gather_ahead, between(0, 64),
           "zero_stage 3 where parameters are gathered (between hosts, TCP, MPI, arena = false): "
           "the units of so many modules are gathered before their turn")
      .only_with({of_stage_3_or_default})
      .key("reshard_after_forward", &P::reshard_after_forward, any(),
           "zero_stage 3 where parameters are gathered (between hosts, TCP, MPI, arena = false): "
           "they are released after forward and gathered again for backward")
      .only_with({of_stage_3})
      .key("shard_units", &P::shard_units,
           "zero_stage 1 to 3: which modules are flattened, cut and reduced as one: the model's "
           "blocks, those of shard_unit_size, those of "
           "shard_unit_names, or all as one")
      .only_with({of_shards})
      .key("shard_unit_size", &P::shard_unit_size, between(1, 1e12),
           "shard_units = \"size\": a module with so many parameters becomes a unit")
      .only_with({of_shards, of_units_by_size})
      .key("shard_unit_names", &P::shard_unit_names, any(),
           "shard_units = \"names\": paths of modules; * stands for any text")
      .only_with({of_shards})
      .key("reduce_every_micro_batch", &P::reduce_every_micro_batch, any(),
           "zero_stage 2 and 3: gradients are reduced after every micro-batch, so that whole ones "
           "do not outlive it")
      .only_with({of_shards})
      .key("timeout_s", &P::timeout_s, {0, 86400, true, {}},
           "longest wait for another rank in seconds");
}

}  // namespace shoal::train
