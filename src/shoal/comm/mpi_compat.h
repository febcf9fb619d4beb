#pragma once

// Includes mpi.h, for the .cpp files of the transport over MPI, in builds that have one.
#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>

#include "shoal/collective/communicator.h"
#include "shoal/wire/error_bytes.h"

namespace shoal::comm {

/// This process's MPI, from MPI_Init_thread to MPI_Finalize. A program that has initialised MPI
/// itself finalises it itself too.
///
/// Every call of MPI from this process holds `mutex`, so thread level MPI_THREAD_SERIALIZED is
/// needed, and enough for any number of groups and threads. A function of MPI that blocks without a
/// deadline is called only when all ranks are known to have come. The exceptions are MPI_Init and
/// MPI_Finalize, which wait for ranks as long as the launcher lets them. After an abort MPI is not
/// finalised, which ends the job under mpirun.
class MpiWorld {
 public:
  /// Throws Error(config) when MPI cannot be had at that thread level.
  MpiWorld();
  ~MpiWorld();
  MpiWorld(const MpiWorld&) = delete;
  MpiWorld& operator=(const MpiWorld&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  int ranks_on_host() const { return ranks_on_host_; }
  int largest_tag() const { return largest_tag_; }
  std::mutex& mutex() { return mutex_; }
  bool aborted() const { return aborted_; }

  /// Sends the cause to all ranks of the world, as messages that every wait looks for.
  void publish_failure(const Error& cause);
  /// Returns the cause that another rank has sent, if one has.
  std::optional<Error> poll_failure();

 private:
  struct Message;
  bool owns_ = false;
  int rank_ = 0;
  int size_ = 1;
  int ranks_on_host_ = 1;
  int largest_tag_ = 32767;
  std::mutex mutex_;
  MPI_Comm control_ = MPI_COMM_NULL;
  std::unique_ptr<Message> incoming_;
  MPI_Request listening_ = MPI_REQUEST_NULL;
  std::atomic<bool> aborted_ = false;  ///< this rank has published a cause
  std::optional<Error> cause_;         ///< that another rank has sent
};

/// Throws the Error for a call of MPI that failed.
void check_mpi(int code, const char* call, int rank, int size);

/// Returns the communicator of all ranks of the world. A call of MPI counts at most `largest`
/// elements: larger operations are several calls, or count in blocks.
std::unique_ptr<collective::Communicator> mpi_communicator(const std::shared_ptr<MpiWorld>& world,
                                                           Duration timeout, std::size_t largest);

}  // namespace shoal::comm
