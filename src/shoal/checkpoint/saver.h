#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "shoal/base/clock.h"
#include "shoal/checkpoint/checkpoint.h"
#include "shoal/comm/group.h"

namespace shoal::checkpoint {

struct SaverOptions {
  std::int64_t staging_bytes =
      std::int64_t{512}
      << 20;  ///< the most of a state that is held twice; taken when needed, then kept
  /// The part of one core's time that the writer may take while nobody waits for it, in (0, 1].
  double writer_share = 0.2;
};

/// A save that is done.
struct Saved {
  std::string path;
  Duration took{};     ///< time from start() to the final name
  Duration held_up{};  ///< the part of it for which the caller was blocked
};

/// Saves on another thread: `start` marks the state as it is and returns, and the thread writes it.
/// The bytes are those that `save` writes.
///
///     saver.start(directory, step, items, metadata);   // what items hold stays as it is until
///     ...                                              // forward, backward
///     saver.before_update();                           // from here on it may change
///     optimizer.step(...);
///     if (auto saved = saver.poll()) log(saved->path); // once a step
///
/// The checkpoint gets its name after every rank has written; until then, and when a rank dies or
/// writing fails, the one before stays the newest. Members are collective, but `busy`. After a
/// failure to write on one rank, the next of poll, wait and start throws on every rank, as save
/// does. Threads: one at a time.
class Saver {
 public:
  /// Throws Error(config) for options outside their range.
  Saver(comm::Group group, const SaverOptions& options = {});
  /// Cancels a save that is under way.
  ~Saver();
  Saver(const Saver&) = delete;
  Saver& operator=(const Saver&) = delete;

  /// Throws Error(usage) while a save is under way: `wait` first.
  void start(const std::string& directory, std::int64_t step, std::vector<StateItem> items,
             const std::string& metadata, const SaveOptions& options = {});
  /// Size of the staging memory, which is kept for the next save.
  std::int64_t staged_bytes() const { return staging_.defined() ? staging_.numel() : 0; }
  /// Returns true while a save is under way.
  bool busy() const { return task_ != nullptr; }
  /// Must be called before the memory of the items of `start` changes. It copies memory that the
  /// thread has not read yet, and waits for the thread where that does not fit into staging.
  void before_update();
  /// Returns a save that is done, once; returns nothing while it goes on.
  std::optional<Saved> poll();
  /// Waits until the save that is under way is done; the writer then works at full speed.
  Saved wait();

 private:
  struct Task;

  void make_snapshot(const std::vector<StateItem>& items);
  void run(std::string (*work)(Task&));
  std::optional<Saved> advance();
  bool any_rank(bool here) const;
  void give_up() noexcept;

  comm::Group group_;
  SaverOptions options_;
  at::Tensor staging_;  ///< [bytes] uint8
  std::unique_ptr<Task> task_;
  Duration held_up_{};
};

}  // namespace shoal::checkpoint
