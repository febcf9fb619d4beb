#include "apps/shoal/flight_answers.h"

#include <fmt/format.h>

#include <chrono>
#include <filesystem>
#include <utility>

#include "apps/shoal/blocked_signals.h"
#include "shoal/base/error.h"
#include "shoal/base/file.h"
#include "shoal/collective/flight/flight_files.h"

namespace shoal::apps {
namespace {

/// Five looks a second cost nothing that can be measured, and `shoal diagnose` waits for seconds.
constexpr auto kLookEvery = std::chrono::milliseconds(200);

}  // namespace

std::string flight_answer_file(const std::string& run_directory, int rank) {
  return fmt::format("{}/logs/diagnose-rank-{}.jsonl", run_directory, rank);
}

FlightAnswers::FlightAnswers(const RankArguments& arguments,
                             std::shared_ptr<const collective::FlightBook> book)
    : board_(*arguments.board),
      file_(flight_answer_file(arguments.run_directory, arguments.rank)),
      first_rank_(arguments.rank),
      ranks_(arguments.in_process ? arguments.world : 1),
      world_(arguments.world),
      book_(std::move(book)) {
  // ThreadSanitizer loses a signal that a thread gets in its first moments.
  const BlockedSignals blocked;
  thread_ = std::thread([this] { watch_board(); });
}

FlightAnswers::~FlightAnswers() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  ends_.notify_all();
  thread_.join();
  std::error_code ignored;
  std::filesystem::remove(file_, ignored);
}

void FlightAnswers::watch_board() {
  std::int64_t answered = 0;
  std::unique_lock lock(mutex_);
  while (!ends_.wait_for(lock, kLookEvery, [this] { return ending_; })) {
    const std::int64_t asked = board_.run->flights_asked;
    if (asked == answered) continue;
    answered = asked;
    try {
      write();
    } catch (const std::exception&) {
      // A disk that is full must not end the run: whoever asked learns that no answer came.
      continue;
    }
    for (int rank = first_rank_; rank < first_rank_ + ranks_; ++rank)
      board_.ranks[static_cast<std::size_t>(rank)].flights_written = asked;
  }
}

void FlightAnswers::write() const {
  replace_text(file_, collective::flight_lines({kFlightNow, first_rank_, world_}, *book_),
               "diagnose");
}

}  // namespace shoal::apps
