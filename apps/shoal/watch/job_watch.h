#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apps/shoal/watch/request_server.h"
#include "shoal/train/config/run_board.h"

namespace shoal::apps {

/// A job that is to be watched.
struct WatchedJob {
  std::string run_directory;  ///< exists, and its lock is held
  train::RunBoard board;
  std::string prometheus;  ///< metrics.prometheus of the job; empty: nothing listens
  std::string launcher;    ///< what started the ranks, where it was not Shoal's own: "torchrun"
};

/// Lets other terminals watch and steer a job: a socket in its run directory (JobRequests), and the
/// endpoint for Prometheus where the job wants one. Afterwards it leaves a note of how the job
/// ended (LastRun). It lives in the launcher, or in the process of rank 0 where there is none.
class JobWatch {
 public:
  /// Removes what says how the start before ended. The board must outlive this object.
  explicit JobWatch(WatchedJob job);
  ~JobWatch();
  JobWatch(const JobWatch&) = delete;
  JobWatch& operator=(const JobWatch&) = delete;

  /// Lets clients connect. A run directory that can hold no socket is no error: a line on standard
  /// error says that the job cannot be watched. Throws Error(config) or Error(resource) when
  /// `prometheus` cannot be listened on.
  void listen();
  /// Begins to answer, on a thread: no process may be forked by this one until ended().
  void serve();
  /// Says what failed first, once the job has ended.
  void cause(const std::string& text) { cause_ = text; }
  /// Ends the thread and notes how the job has ended: with its exit code.
  void ended(int code);

 private:
  WatchedJob job_;
  std::vector<Listener> listeners_;
  std::optional<RequestServer> server_;
  std::string cause_;
};

}  // namespace shoal::apps
