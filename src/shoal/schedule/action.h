#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace shoal::schedule {

enum class Kind : std::uint8_t {
  kForward,
  kBackward,           ///< both gradients at once
  kInputGradient,      ///< the gradient of the stage's input: what the stage before waits for
  kWeightGradient,     ///< the gradient of its weights, any time after kInputGradient
  kSendActivation,     ///< output of `stage` to the rank of `stage` + 1
  kReceiveActivation,  ///< input of `stage` from the rank of `stage` - 1
  kSendGradient,       ///< gradient of the input of `stage` to the rank of `stage` - 1
  kReceiveGradient,    ///< gradient of the output of `stage` from the rank of `stage` + 1
};

/// The mark of a kind in schedule files: F, B, I, W as in PyTorch's, and SEND_F, RECV_F, SEND_B,
/// RECV_B.
const char* mark(Kind kind);
bool is_compute(Kind kind);
bool is_send(Kind kind);

/// One thing that one rank does in a pipeline step. Sends do not wait for their receiver; receives
/// wait for their sender; between two ranks messages are told apart by kind, stage and micro-batch,
/// so their order does not matter.
struct Action {
  Kind kind = Kind::kForward;
  int stage = 0;  ///< a piece of the model, counted along the data path over all ranks
  int micro_batch = 0;
  int peer = -1;  ///< the other rank of a send or receive

  bool operator==(const Action&) const = default;
};

std::string to_string(const Action& action);  ///< "3F0": stage 3, forward, micro-batch 0

/// A pipeline schedule: who holds which stage, and what every rank does in order. Plain data:
/// generated, checked, executed, simulated, printed. Consecutive stages on one rank hand over
/// without a message.
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

}  // namespace shoal::schedule
