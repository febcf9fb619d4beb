#pragma once

#include <atomic>
#include <cstdint>
#include <span>

namespace shoal::train {

/// The phase that a run is in.
enum class RunPhase : std::uint8_t { kStarting, kTraining, kEvaluating, kSaving, kEnding };

/// How far one rank is. The rank writes its line, the launcher the last two members.
struct alignas(64) RankLine {
  std::atomic<std::int64_t> step{0};             ///< current step, counted from 1; 0: not begun
  std::atomic<std::int64_t> progress_ns{0};      ///< when it last went on (Clock); 0: never
  std::atomic<std::int64_t> flights_written{0};  ///< of `flights_asked`: the last it has answered
  std::atomic<std::int32_t> process{0};          ///< process id; 0: not known here
  std::atomic<bool> ended{false};                ///< the process has ended
};

/// The requests to the ranks of a run, and the answers of rank 0 for all. Requests are numbered
/// from 1; a counter holds the number of the last one.
struct alignas(64) RunLine {
  std::atomic<bool> stop_asked{false};  ///< save and stop, as at SIGTERM
  std::atomic<std::int64_t> saves_asked{0};
  std::atomic<std::int64_t> flights_asked{0};  ///< each rank writes down its collectives

  std::atomic<std::int64_t> saves_answered{0};  ///< the last of `saves_asked` that is complete
  std::atomic<std::int64_t> saved_step{0};      ///< step of the checkpoint that answered it
  std::atomic<RunPhase> phase{RunPhase::kStarting};
  std::atomic<std::int64_t> first_step{0};        ///< steps that were trained before this start
  std::atomic<std::int64_t> total_steps{0};       ///< 0: not known yet
  std::atomic<std::int64_t> trained_since_ns{0};  ///< when the first step began (Clock)
};

static_assert(std::atomic<std::int64_t>::is_always_lock_free &&
                  std::atomic<bool>::is_always_lock_free &&
                  std::atomic<RunPhase>::is_always_lock_free,
              "the lines are shared between processes");

/// Lines that lie where the ranks and whoever watches them can see them: in memory that the
/// launcher shares with its ranks. A value over that memory. Threads and processes: any.
struct RunBoard {
  RunLine* run = nullptr;
  std::span<RankLine> ranks;  ///< by rank in the world
};

}  // namespace shoal::train
