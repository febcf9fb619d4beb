#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "shoal/train/config/run_board.h"

namespace shoal::apps {

/// The protocol of a run's socket: one request, a word and a line end, and one answer, a JSON
/// object and a line end. The words:
///   status:  the answer is a JobStatus
///   stop:    the run is to save and stop, as at SIGTERM
///   save:    the run is to write a checkpoint before its next step; `saves_answered` of a later
///            status reaches the number in `request` when it is complete
///   flights: each rank is to write down its collectives; its `flights_written` reaches `request`
/// The answer to each is the JobStatus of that moment, or {"error": "..."}.
class JobRequests {
 public:
  /// No request is longer, in bytes.
  static constexpr std::size_t kLongest = 64;

  /// `launcher`: what started the ranks, where it was not Shoal's own. The board must outlive this.
  JobRequests(const train::RunBoard& board, std::string launcher);

  /// Returns the answer to what a client has sent so far; nothing while its request may go on.
  std::optional<std::string> answer(std::string_view received) const;

 private:
  std::string carry_out(std::string_view request) const;

  train::RunBoard board_;
  std::string launcher_;
};

}  // namespace shoal::apps
