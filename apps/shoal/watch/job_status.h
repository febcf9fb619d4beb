#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "apps/shoal/watch/process_state.h"
#include "shoal/train/config/run_board.h"

namespace shoal::apps {

/// One rank of a running job.
struct RankStatus {
  int rank = 0;
  int process = 0;  ///< 0: not known here
  ProcessState state = ProcessState::kUnknown;
  std::int64_t step = 0;  ///< current step, counted from 1; 0: not begun
  double age_s = -1;      ///< seconds since it last went on; below 0: it has not begun
  std::int64_t resident_bytes = 0;
  std::int64_t flights_written = 0;  ///< the last request for its collectives that it has answered
};

/// The process that serves a running job knows this, and answers every request with it.
struct JobStatus {
  int process = 0;         ///< that serves the job
  std::string launcher{};  ///< what started the ranks, where it was not Shoal's own: "torchrun"
  std::string phase{};     ///< "starting", "training", "evaluating", "saving", "ending"
  bool stopping = false;   ///< it was asked to stop
  std::int64_t first_step = 0;
  std::int64_t total_steps = 0;  ///< 0: not known yet
  double training_s = -1;        ///< since the first step of this start; below 0: not begun
  std::int64_t request = 0;      ///< number of the request that this answers; 0: it has none
  std::int64_t saves_answered = 0;
  std::int64_t saved_step = 0;
  std::vector<RankStatus> ranks{};
};

/// Returns the word for a phase.
const char* name(train::RunPhase phase);

/// Reads a board, and what the system says about the processes on it.
JobStatus read_job_status(const train::RunBoard& board, const std::string& launcher);

/// Writes one JSON object without a line end.
std::string to_json(const JobStatus& status);
/// Throws Error(data) when `text` is no such object.
JobStatus parse_job_status(const std::string& text);

}  // namespace shoal::apps
