#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace shoal::schedule {

enum class Kind : std::uint8_t {
  kForward,
  kBackward,           ///< both gradients at once
  kInputGradient,      ///< gradient of the stage's input, for which the stage before waits
  kWeightGradient,     ///< gradient of its weights, any time after kInputGradient
  kSendActivation,     ///< output of `stage` to the rank of `stage` + 1
  kReceiveActivation,  ///< input of `stage` from the rank of `stage` - 1
  kSendGradient,       ///< gradient of the input of `stage` to the rank of `stage` - 1
  kReceiveGradient,    ///< gradient of the output of `stage` from the rank of `stage` + 1
  kGather,             ///< parameters of the stage from the ranks that hold shards of them
  kRelease,            ///< of the memory that kGather has filled
};

/// Returns the mark of a kind in schedule files, as in PyTorch's: F, B, I, W, SEND_F, RECV_F,
/// SEND_B, RECV_B, UNSHARD, RESHARD.
const char* mark(Kind kind);
bool is_compute(Kind kind);
bool is_send(Kind kind);
bool is_receive(Kind kind);
/// True for gathers and releases, which are of a stage and of no micro-batch.
bool moves_parameters(Kind kind);
/// True for passes that read the stage's parameters: all but weight gradients (those of a head that
/// computes its logits again read its matrix, and are not for tables that release stages).
bool reads_parameters(Kind kind);

/// One action of one rank in a pipeline step. A send does not wait for its receiver; a receive
/// waits for its sender; a gather does not wait, but the computation that reads its stage. Kind,
/// stage and micro-batch identify a message between two ranks, so that
/// the order of messages does not matter.
struct Action {
  Kind kind = Kind::kForward;
  int stage = 0;  ///< number of the part of the model along the data path, over all ranks
  int micro_batch = 0;
  int peer = -1;  ///< the other rank of a send or receive

  bool operator==(const Action&) const = default;
};

/// Returns "3F0" for stage 3, forward, micro-batch 0; "3UNSHARD" for the gather of stage 3.
std::string to_string(const Action& action);

/// A pipeline schedule: the rank of every stage, and the actions of every rank in order. It is
/// plain data that is generated, checked, executed, simulated and printed. Consecutive stages on
/// one rank pass their activations without a message.
struct Schedule {
  std::string name;
  int micro_batches = 0;
  std::vector<int> rank_of_stage;
  std::vector<std::vector<Action>> table;  ///< table[rank][i]

  int ranks() const { return static_cast<int>(table.size()); }
  int stages() const { return static_cast<int>(rank_of_stage.size()); }
  bool operator==(const Schedule&) const = default;
};

/// Adds the sends and receives to a table of computations: a receive just before its consumer, a
/// send right after its producer.
void add_transfers(Schedule& schedule);

/// Returns the number of actions of each rank, from the first on, that compute no loss and need no
/// gradient. They follow from the parameters alone and can run again when these have changed:
/// nothing that they receive was sent behind such a part of another rank's actions.
std::vector<std::size_t> repeatable(const Schedule& schedule);

/// Returns the forward passes of a schedule and their messages, for an evaluation. It is free of
/// deadlock if `schedule` is: forwards wait for forwards alone.
Schedule forward_only(const Schedule& schedule);

}  // namespace shoal::schedule
