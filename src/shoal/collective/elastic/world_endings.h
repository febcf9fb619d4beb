#pragma once

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

namespace shoal::collective::elastic {

/// Ends the worlds of earlier views, each in a thread of its own: a peer that is gone without a
/// word may take it seconds. The destructor waits for all of them. One thread.
class WorldEndings {
 public:
  WorldEndings() = default;
  ~WorldEndings();
  WorldEndings(const WorldEndings&) = delete;
  WorldEndings& operator=(const WorldEndings&) = delete;

  /// Ends what the caller alone holds.
  void end(std::shared_ptr<void> world);

 private:
  struct Ending {
    std::shared_ptr<std::atomic<bool>> done;
    std::thread thread;
  };
  std::vector<Ending> endings_;
};

}  // namespace shoal::collective::elastic
