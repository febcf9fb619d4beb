#include "shoal/checkpoint/saver.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <system_error>
#include <thread>
#include <utility>

#include "shoal/base/check.h"
#include "shoal/checkpoint/agreement.h"
#include "shoal/checkpoint/format/store.h"
#include "shoal/checkpoint/snapshot.h"
#include "shoal/checkpoint/writing.h"

namespace shoal::checkpoint {
namespace {

/// Keeps the thread that makes it to a part of one core's time.
class Pace {
 public:
  explicit Pace(double share) : share_(share) {}

  /// Rests until the time since the last call is what the work in it may take.
  void keep(Snapshot& snapshot) {
    const auto work = processor_time() - processor_;
    const auto passed = Duration(Clock::now() - clock_);
    const auto due = std::chrono::duration_cast<Duration>(work / share_);
    if (due > passed) snapshot.rest(due - passed);
    processor_ = processor_time();
    clock_ = Clock::now();
  }

 private:
  static Duration processor_time() {
    timespec time{};
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
  }

  double share_;
  Duration processor_ = processor_time();
  Clock::time_point clock_ = Clock::now();
};

/// Adds the time that it lives.
class Stopwatch {
 public:
  explicit Stopwatch(Duration& sum) : sum_(sum) {}
  ~Stopwatch() { sum_ += Clock::now() - begin_; }

 private:
  Duration& sum_;
  Clock::time_point begin_ = Clock::now();
};

}  // namespace

/// One save on its way. The thread has it to itself from `run` until `done`.
struct Saver::Task {
  std::string directory, folder, metadata;
  std::int64_t step = 0;
  int rank = 0;
  SaveOptions options;
  double share = 1;
  std::vector<OwnBox> own;
  std::vector<std::string> left;  ///< names that other ranks write
  std::unique_ptr<Snapshot> snapshot;
  std::vector<std::string> parts;  ///< rank 0, committing: what all have written

  bool detached = false, committing = false;
  std::thread thread;
  std::atomic<bool> done = true;
  std::string result;
  std::exception_ptr error;
  Clock::time_point marked = Clock::now();

  static std::string write(Task& task);
  static std::string commit(Task& task) {
    return complete(task.directory, task.folder, task.step, task.metadata, task.parts,
                    task.options);
  }
};

std::string Saver::Task::write(Task& task) {
  Pace pace(task.share);
  std::vector<format::Source> sources;
  for (std::size_t i = 0; i < task.own.size(); ++i) {
    sources.push_back(task.own[i].source);
    sources.back().block = [&task, &pace, i](std::int64_t begin, std::int64_t) {
      pace.keep(*task.snapshot);
      return task.snapshot->read(i, static_cast<std::size_t>(begin / format::kBlockElements));
    };
  }
  return write_own(task.folder, task.rank, std::move(sources), task.left, task.options);
}

Saver::Saver(comm::Group group, const SaverOptions& options)
    : group_(std::move(group)), options_(options) {
  if (options.staging_bytes < 0 || !(options.writer_share > 0 && options.writer_share <= 1)) {
    throw Error(ErrorKind::kConfig, "checkpoint",
                fmt::format("staging_bytes={}, writer_share={}", options.staging_bytes,
                            options.writer_share));
  }
}

Saver::~Saver() { give_up(); }

void Saver::start(const std::string& directory, std::int64_t step, std::vector<StateItem> items,
                  const std::string& metadata, const SaveOptions& options) {
  SHOAL_USER_CHECK(!busy(), "checkpoint", "step {} is still being saved", task_->step);
  check_save(step, options);
  held_up_ = Duration::zero();
  task_ = std::make_unique<Task>();  // its time begins here and holds all that the caller waits
  const Stopwatch watch(held_up_);
  task_->directory = directory;
  task_->metadata = metadata;
  task_->step = step;
  task_->options = options;
  task_->rank = group_.rank();
  task_->share = options_.writer_share;
  try {
    task_->folder = agree(group_, options.timeout, [&] {
      return group_.rank() == 0 ? format::begin_step(directory, step) : "";
    })[0];
    // After this every rank has marked its state, or none saves.
    agree(group_, options.timeout, [&] {
      make_snapshot(items);
      return std::string();
    });
  } catch (...) {
    give_up();
    throw;
  }
  run(Task::write);
}

void Saver::make_snapshot(const std::vector<StateItem>& items) {
  task_->own = own_boxes(items);
  task_->left = left_to_others(items, task_->own);
  std::vector<Snapshot::Range> ranges;
  for (const OwnBox& own : task_->own) {
    ranges.push_back({own.data, static_cast<std::size_t>(own.source.bytes()),
                      format::kBlockElements * size_of(own.source.type)});
  }
  task_->snapshot = std::make_unique<Snapshot>(
      ranges, static_cast<std::size_t>(options_.staging_bytes), [this](std::size_t bytes) {
        // The old memory goes before the new is taken, so that both are never held at once.
        if (!staging_.defined() || staging_.numel() < static_cast<std::int64_t>(bytes)) {
          staging_ = at::Tensor();
          staging_ = at::empty({static_cast<std::int64_t>(bytes)}, at::kByte);
        }
        return static_cast<char*>(staging_.data_ptr());
      });
}

void Saver::run(std::string (*work)(Task&)) {
  Task& task = *task_;
  task.done.store(false, std::memory_order_relaxed);
  task.result.clear();
  const auto fail = [&task](std::exception_ptr error) {
    // The owner must not wait for a writer that has stopped.
    task.error = std::move(error);
    task.snapshot->cancel();
  };
  try {
    task.thread = std::thread([&task, work, fail] {
      try {
        task.result = work(task);
      } catch (...) {
        fail(std::current_exception());
      }
      // Pairs with the acquire in `poll`. Result and error are read after the join.
      task.done.store(true, std::memory_order_release);
    });
  } catch (const std::system_error& error) {
    // No thread can be started. All ranks hear of it when they next ask, as of any failed write.
    fail(std::make_exception_ptr(
        Error(ErrorKind::kResource, "checkpoint",
              fmt::format("cannot start the thread that writes: {}", error.what()))));
    task.done.store(true, std::memory_order_release);
  }
}

void Saver::before_update() {
  if (!busy() || task_->detached) return;
  const Stopwatch watch(held_up_);
  // Ranks whose disk is faster wait for the others, however long; one that died or stands still is
  // missed as in any other operation.
  while (any_rank(!task_->snapshot->detach(std::chrono::milliseconds(200)))) {
  }
  task_->detached = true;
}

/// Returns on every rank whether `here` is true on any.
bool Saver::any_rank(bool here) const { return group_.sum(here ? 1 : 0) > 0; }

std::optional<Saved> Saver::poll() {
  if (!busy()) return std::nullopt;
  if (any_rank(!task_->done.load(std::memory_order_acquire))) return std::nullopt;
  return advance();
}

Saved Saver::wait() {
  SHOAL_USER_CHECK(busy(), "checkpoint", "nothing is being saved");
  // From here on the caller waits, so the writer may use the whole core.
  task_->snapshot->hurry();
  for (;;)
    if (auto saved = advance()) return *saved;
}

/// To the next part when every rank is through with this one: written by all, then named by rank 0.
/// Waits for this rank's thread.
std::optional<Saved> Saver::advance() {
  Saved saved;
  try {
    const Stopwatch watch(held_up_);
    // The thread has ended on this rank, or ends now; the agreement waits for those of the others.
    if (task_->thread.joinable()) task_->thread.join();
    auto results = agree(group_, task_->options.timeout, [&] {
      if (task_->error) std::rethrow_exception(task_->error);
      return std::exchange(task_->result, {});
    });
    if (!task_->committing) {
      task_->committing = true;
      task_->parts = std::move(results);
      // All files of all ranks are written by now. The other ranks have nothing to do, and their
      // `done` stays true.
      if (group_.rank() == 0) run(Task::commit);
      return std::nullopt;
    }
    saved.path = results[0];
  } catch (...) {
    give_up();
    throw;
  }
  saved.took = Clock::now() - task_->marked;
  saved.held_up = held_up_;
  task_.reset();
  return saved;
}

void Saver::give_up() noexcept {
  if (!task_) return;
  // A writer that rests or waits for a block wakes up and throws. It must be gone before its task
  // and the folder are.
  if (task_->snapshot) task_->snapshot->cancel();
  if (task_->thread.joinable()) task_->thread.join();
  if (group_.rank() == 0) format::abandon_step(task_->directory, task_->step);
  task_.reset();
}

}  // namespace shoal::checkpoint
