#include "shoal/train/config/conditions.h"
#include "shoal/train/config/key_lister.h"

namespace shoal::train {

void list_run_keys(std::vector<ConfigKey>& keys) {
  using A = ActivationCheckpointSection;
  Lister<A>(keys, "activation_checkpoint", &JobConfig::activation_checkpoint)
      .key("mode", &A::mode,
           "what blocks keep for backward instead of everything; the rest is computed twice, with "
           "the same bits. full: their input; every_k: every "
           "k-th "
           "block its input; selective: inputs and results of matrix products; budget: the "
           "cheapest ways that fit")
      .key("every_k", &A::every_k, at_least(1), "every_k: blocks k, 2k, 3k ... are recomputed")
      .only_with({of_every_k})
      .key("budget_mb", &A::budget_mb, at_least(0),
           "budget: what the blocks of one rank may hold at once, in MB")
      .only_with({of_budget});
  using C = CheckpointSection;
  Lister<C>(keys, "checkpoint", &JobConfig::checkpoint)
      .key("interval", &C::interval, between(0, 1e12),
           "steps between checkpoints; 0: only at the end and when a signal stops the run")
      .key("at_end", &C::at_end, any(), "the last step is saved too, whatever `interval` says")
      .key("keep_last", &C::keep_last, between(0, 1e6),
           "newest complete checkpoints that are kept; 0: all")
      .key("asynchronous", &C::asynchronous, any(),
           "checkpoints are written behind training, which goes on; those of the end and of a "
           "signal are waited for. The same files either way")
      .key("staging_mb", &C::staging_mb, between(0, 1e9),
           "asynchronous: what of its state a rank may copy, in MB, because the next update comes "
           "before it is written; the update waits for the rest")
      .only_with({of_asynchronous})
      .key("writer_share", &C::writer_share, {0, 1, true, {}},
           "asynchronous: part of one core's time that a rank's writer takes while nothing waits "
           "for it")
      .only_with({of_asynchronous})
      .key("max_file_mb", &C::max_file_mb, between(1, 1e9),
           "a rank begins another file beyond this, in MB; a larger tensor has a file of its own");
  using M = MetricsSection;
  Lister<M>(keys, "metrics", &JobConfig::metrics)
      .key("log_interval", &M::log_interval, between(1, 1e9),
           "steps between lines on a console that is no terminal")
      .key("tensorboard", &M::tensorboard, any(), "write TensorBoard event files")
      .key("memory_steps", &M::memory_steps, between(0, 1e6),
           "first steps of a run of which memory-rank-R.csv says, moment by moment, what the rank "
           "held by category; memory.svg draws the last of "
           "them")
      .key("trace_steps", &M::trace_steps, between(1, 1e12),
           "first and last step, counted from 1, of which trace.json says what every rank did and "
           "when; empty: none")
      .key("prometheus", &M::prometheus, any(),
           "HOST:PORT at which Prometheus reads figures of the run, from the host of rank 0: "
           "127.0.0.1:9400, or 0.0.0.0:9400 for all networks. Whoever reaches it may read them; "
           "empty: none");
  using V = ValidationSection;
  Lister<V>(keys, "validation", &JobConfig::validation)
      .key("interval", &V::interval, between(0, 1e12),
           "steps between evaluations; 0: only at the end")
      .key("batches", &V::batches, between(0, 1e9),
           "global batches that one evaluation reads; 0: the whole validation split")
      .key("sample_tokens", &V::sample_tokens, between(0, 1e6),
           "tokens: tokens generated and printed at the end of the run; 0: none")
      .only_with({of_tokens})
      .key("sample_prompt", &V::sample_prompt, any(), "tokens: text that the sample continues")
      .only_with({of_tokens, of_samples});
  using D = DebugSection;
  Lister<D>(keys, "debug", &JobConfig::debug)
      .key("seed", &D::seed, between(0, 9007199254740992.0), "of weights, dropout and sample order")
      .key("fault", &D::fault,
           "what goes wrong on purpose: an error, a silent exit, SIGKILL, SIGSTOP, a loss that is "
           "not a number, a gradient that is infinite, or a wrong bit in the state of an elastic "
           "member: behind the update, in its first attempt at the step, unless fault_action says "
           "where")
      .key("fault_step", &D::fault_step, between(0, 1e12),
           "in which step, counted from 1; 0: in none")
      .only_with({of_faults})
      .key("fault_rank", &D::fault_rank, between(0, 1e9), "on which rank")
      .only_with({of_faults})
      .key(
          "fault_action", &D::fault_action, any(),
          "before which action of that rank in the step, as schedule files write them: \"1F3\" is "
          "the forward pass of micro-batch 3 in stage 1, both counted from 0, with B for a "
          "backward pass (I and W where it is split), SEND_F, RECV_F, SEND_B and RECV_B for "
          "messages of a pipeline; without one the model is stage 0; empty: before the step. In "
          "an elastic job also \"reduce\": in the middle of the sum of gradients, \"update\": "
          "behind the update, \"report\": when the others are told of it, \"commit\": when all are "
          "known to have it, and from that step on \"view\": when others have come or gone, "
          "\"give\": when it gives its state to a joiner, \"take\": when it has taken it as one")
      .only_with({of_faults});
}

}  // namespace shoal::train
