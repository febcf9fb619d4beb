#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "apps/shoal/torch/entry.h"
#include "shoal/collective/flight/flight_book.h"

namespace shoal::apps {

/// The run that the lines of such a file name: it holds one moment, of which no two are mixed.
inline constexpr const char* kFlightNow = "now";

/// Returns the file into which a rank writes its collectives when it is asked:
/// <run directory>/logs/diagnose-rank-<r>.jsonl.
std::string flight_answer_file(const std::string& run_directory, int rank);

/// Writes down the collectives of a process's ranks while they go on, each time that another
/// terminal asks for it on the board (RunLine::flights_asked). A thread of its own looks at the
/// board: the ranks may stand still in one of these collectives.
class FlightAnswers {
 public:
  /// The board of `arguments` must outlive this object.
  FlightAnswers(const RankArguments& arguments, std::shared_ptr<const collective::FlightBook> book);
  /// Ends the thread and removes what it has written.
  ~FlightAnswers();
  FlightAnswers(const FlightAnswers&) = delete;
  FlightAnswers& operator=(const FlightAnswers&) = delete;

 private:
  void watch_board();
  void write() const;

  train::RunBoard board_;
  std::string file_;
  int first_rank_;  ///< the ranks of this process
  int ranks_;
  int world_;
  std::shared_ptr<const collective::FlightBook> book_;
  std::mutex mutex_;
  std::condition_variable ends_;
  bool ending_ = false;
  std::thread thread_;
};

}  // namespace shoal::apps
