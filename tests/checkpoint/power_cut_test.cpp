// Checkpoints after a power cut. This program puts functions of its own before those of the system
// (fsync, rename, unlinkat), so that it sees each call that a save makes about the disk. At every
// such call it makes the folders that a power cut could leave, and asks for the newest checkpoint
// in each.
#include <ATen/ops/full.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/fs.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <mutex>
#include <set>

#include "shoal/checkpoint/checkpoint.h"
#include "shoal/checkpoint/format/reader.h"
#include "shoal/checkpoint/format/store.h"
#include "shoal/checkpoint/saver.h"
#include "tests/checkpoint/thread_ranks.h"
#include "tests/checkpoint_format/scratch.h"

namespace shoal::checkpoint::power_cut_test {
namespace {

namespace fs = std::filesystem;

/// What the disk surely holds below a folder, and what it may hold: a file has the bytes of its
/// last fsync or those of now, a folder the names of its last fsync or those of now. Each folder
/// may be at either by itself, for the system writes them when it likes.
class Disk {
 public:
  using Inode = ino_t;
  using Names = std::map<std::string, Inode>;

  explicit Disk(std::string root) : root_(std::move(root)) {
    look(root_);
    for (auto& [inode, folder] : folders_) folder.durable = folder.now;
    for (auto& [inode, file] : files_) file.durable = file.now;
  }
  ~Disk() {
    for (const int descriptor : pins_) ::close(descriptor);
  }
  Disk(const Disk&) = delete;
  Disk& operator=(const Disk&) = delete;

  /// Visits states again that were visited before: other things are expected of them now.
  void forget_states() { seen_.clear(); }
  /// Reads what is there now.
  void observe() { look(root_); }

  /// An fsync of a file or a folder has returned.
  void synced(Inode inode) {
    if (const auto file = files_.find(inode); file != files_.end())
      file->second.durable = file->second.now;
    if (const auto folder = folders_.find(inode); folder != folders_.end())
      folder->second.durable = folder->second.now;
  }

  /// Makes each folder that a power cut now could leave at `path`, one after the other, and calls
  /// `visit` for those that were not visited before.
  void each_state(const std::string& path, const std::function<void()>& visit) {
    std::vector<Inode> unsure;
    for (const auto& [inode, folder] : folders_)
      if (folder.now != folder.durable) unsure.push_back(inode);
    ASSERT_LE(unsure.size(), 6u);
    for (unsigned choice = 0; choice < 1u << unsure.size(); ++choice) {
      std::set<Inode> current;
      for (std::size_t i = 0; i < unsure.size(); ++i)
        if (choice >> i & 1u) current.insert(unsure[i]);
      for (const bool files_now : {false, true}) {
        std::string state;
        describe(inode_of(root_), current, files_now, "", state);
        if (!seen_.insert(state).second) continue;
        fs::remove_all(path);
        make(inode_of(root_), current, files_now, path);
        visit();
      }
    }
  }

 private:
  struct File {
    std::string durable, now;
  };
  struct Folder {
    Names durable, now;
  };

  static Inode inode_of(const std::string& path) {
    struct stat status {};
    ::stat(path.c_str(), &status);
    return status.st_ino;
  }

  void look(const std::string& path) {
    const Inode inode = inode_of(path);
    pin(inode, path);
    Names names;
    for (const auto& entry : fs::directory_iterator(path)) {
      const Inode child = inode_of(entry.path());
      names[entry.path().filename()] = child;
      if (entry.is_directory()) {
        look(entry.path());
      } else {
        pin(child, entry.path());
        files_[child].now = testing::slurp(entry.path());
      }
    }
    folders_[inode].now = names;
  }
  /// An open descriptor keeps the number of an inode from being given to another.
  void pin(Inode inode, const std::string& path) {
    if (files_.contains(inode) || folders_.contains(inode)) return;
    pins_.push_back(::open(path.c_str(), O_PATH | O_CLOEXEC));
  }

  const Names& names_of(Inode inode, const std::set<Inode>& current) const {
    const Folder& folder = folders_.at(inode);
    return current.contains(inode) ? folder.now : folder.durable;
  }
  const std::string& bytes_of(Inode inode, bool now) const {
    return now ? files_.at(inode).now : files_.at(inode).durable;
  }
  void describe(Inode inode, const std::set<Inode>& current, bool files_now,
                const std::string& path, std::string& state) const {
    for (const auto& [name, child] : names_of(inode, current)) {
      state += path + "/" + name + "\n";
      if (folders_.contains(child)) {
        describe(child, current, files_now, path + "/" + name, state);
      } else {
        state += std::to_string(std::hash<std::string>()(bytes_of(child, files_now))) + "\n";
      }
    }
  }
  void make(Inode inode, const std::set<Inode>& current, bool files_now,
            const std::string& path) const {
    fs::create_directories(path);
    for (const auto& [name, child] : names_of(inode, current)) {
      if (folders_.contains(child)) {
        make(child, current, files_now, path + "/" + name);
      } else {
        std::ofstream(path + "/" + name, std::ios::binary) << bytes_of(child, files_now);
      }
    }
  }

  std::string root_;
  std::map<Inode, File> files_;
  std::map<Inode, Folder> folders_;
  std::set<std::string> seen_;
  std::vector<int> pins_;
};

/// One call about the disk: its name and the path, relative to the folder that is watched.
using Calls = std::vector<std::string>;

/// While it lives, the calls of all threads about files below `root` are recorded and
/// `after_each_call` is called, one call at a time.
class Watch {
 public:
  Watch(std::string root, std::function<void()> after_each_call = {})
      : root_(std::move(root)), disk_(root_), after_each_call_(std::move(after_each_call)) {
    const std::lock_guard lock(mutex_);
    current_ = this;
  }
  ~Watch() {
    const std::lock_guard lock(mutex_);
    current_ = nullptr;
  }
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  const Calls& calls() const { return calls_; }
  Disk& disk() { return disk_; }
  int failing_sync = -1;  ///< the number of the fsync that fails with EIO; -1: none

  /// Carries out `real` for a call of this name. `synced`: the descriptor of an fsync.
  static int call(const std::string& name, const std::string& path, int synced,
                  const std::function<int()>& real) {
    if (inside_) return real();
    const std::lock_guard lock(mutex_);
    if (current_ == nullptr || !path.starts_with(current_->root_)) return real();
    inside_ = true;
    const int result = current_->record(name, path, synced, real);
    const int code = errno;
    inside_ = false;
    errno = code;
    return result;
  }

 private:
  int record(const std::string& name, const std::string& path, int synced,
             const std::function<int()>& real) {
    // What was done without a call that is seen here (a file made or written, a folder made) may
    // be on the disk or not.
    disk_.observe();
    if (after_each_call_) after_each_call_();
    if (synced >= 0 && syncs_++ == failing_sync) {
      errno = EIO;
      return -1;
    }
    const int result = real();
    const int code = errno;
    if (result == 0) {
      calls_.push_back(name + " " + path.substr(root_.size()));
      disk_.observe();
      if (synced >= 0) {
        struct stat status {};
        ::fstat(synced, &status);
        disk_.synced(status.st_ino);
      }
      if (after_each_call_) after_each_call_();
    }
    errno = code;
    return result;
  }

  std::string root_;
  Disk disk_;
  std::function<void()> after_each_call_;
  Calls calls_;
  int syncs_ = 0;

  static inline std::mutex mutex_;
  static inline Watch* current_ = nullptr;
  /// The calls that the watch itself makes are not recorded.
  static inline thread_local bool inside_ = false;
};

std::string path_of(int descriptor) {
  std::array<char, 4096> path{};
  const std::string link = "/proc/self/fd/" + std::to_string(descriptor);
  const ssize_t length = ::readlink(link.c_str(), path.data(), path.size());
  return {path.data(), static_cast<std::size_t>(std::max<ssize_t>(length, 0))};
}

}  // namespace
}  // namespace shoal::checkpoint::power_cut_test

// The libraries under test find these before the system's.
extern "C" {
int fsync(int descriptor) {
  using namespace shoal::checkpoint::power_cut_test;
  return Watch::call("fsync", path_of(descriptor), descriptor,
                     [&] { return static_cast<int>(::syscall(SYS_fsync, descriptor)); });
}
int fdatasync(int descriptor) {
  using namespace shoal::checkpoint::power_cut_test;
  return Watch::call("fdatasync", path_of(descriptor), descriptor,
                     [&] { return static_cast<int>(::syscall(SYS_fdatasync, descriptor)); });
}
int rename(const char* from, const char* to) noexcept {
  using namespace shoal::checkpoint::power_cut_test;
  return Watch::call("rename", to, -1, [&] {
    return static_cast<int>(::syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0));
  });
}
int renameat2(int from_folder, const char* from, int to_folder, const char* to,
              unsigned flags) noexcept {
  using namespace shoal::checkpoint::power_cut_test;
  return Watch::call(flags == RENAME_EXCHANGE ? "exchange" : "rename", to, -1, [&] {
    return static_cast<int>(::syscall(SYS_renameat2, from_folder, from, to_folder, to, flags));
  });
}
int unlinkat(int folder, const char* name, int flags) noexcept {
  using namespace shoal::checkpoint::power_cut_test;
  const std::string path = folder == AT_FDCWD ? name : path_of(folder) + "/" + name;
  return Watch::call("remove", path, -1, [&] {
    return static_cast<int>(::syscall(SYS_unlinkat, folder, name, flags));
  });
}
}

namespace shoal::checkpoint::power_cut_test {
namespace {

using namespace testing;

constexpr std::int64_t kFloats = 24;

/// Three ranks hold eight numbers each, all of them `value`.
std::vector<StateItem> state_of(double value, int rank) {
  StateItem item{.name = "model.weight",
                 .local = at::full({kFloats / 3}, value, at::kFloat),
                 .global_shape = {kFloats}};
  item.boxes = {{{kFloats / 3 * rank}, {kFloats / 3 * (rank + 1)}}};
  return {item};
}

void save_on_three(const std::string& directory, std::int64_t step, double value, bool behind,
                   int keep_last = 0) {
  run_ranks(3, [&](const comm::Group& group) {
    const SaveOptions options{.keep_last = keep_last};
    if (behind) {
      Saver saver(group, {.writer_share = 1});
      saver.start(directory, step, state_of(value, group.rank()), "{}", options);
      saver.wait();
    } else {
      save(directory, step, state_of(value, group.rank()), "{}", group, options);
    }
  });
}

/// The place of the one call of that name; -1 where there is none.
std::ptrdiff_t place_of(const Calls& calls, const std::string& call) {
  const auto found = std::find(calls.begin(), calls.end(), call);
  return found == calls.end() ? -1 : found - calls.begin();
}

// Data before manifest before the name under which it counts before the folder that holds the name.
TEST(PowerCut, ACheckpointReachesTheDiskBeforeItHasItsName) {
  for (const bool behind : {false, true}) {
    Scratch scratch;
    Watch watch(scratch.path());
    save_on_three(scratch / "run/checkpoints", 1, 1, behind);
    const Calls& calls = watch.calls();
    const std::string writing = "/run/checkpoints/.writing-step-1";
    const auto manifest = place_of(calls, "fsync " + writing + "/manifest.json");
    ASSERT_GE(manifest, 0);
    for (int rank = 0; rank < 3; ++rank) {
      std::ptrdiff_t data = -1;
      for (std::size_t i = 0; i < calls.size(); ++i) {
        if (calls[i].starts_with(fmt::format("fsync {}/shard-{:04}", writing, rank)))
          data = static_cast<std::ptrdiff_t>(i);
      }
      EXPECT_GE(data, 0) << "the data of rank " << rank << " was not brought to the disk";
      EXPECT_LT(data, manifest) << "rank " << rank;
    }
    const auto folder = place_of(calls, "fsync " + writing);
    const auto name = place_of(calls, "rename /run/checkpoints/step-1");
    const auto directory = place_of(calls, "fsync /run/checkpoints");
    EXPECT_LT(manifest, folder);
    EXPECT_LT(folder, name);
    EXPECT_LT(name, directory);
    // A folder that was made for the first checkpoint is no good without a name of its own.
    EXPECT_GE(place_of(calls, "fsync /run"), 0);
    EXPECT_GE(place_of(calls, "fsync "), 0);
  }
}

TEST(PowerCut, EveryInstantLeavesAReadableCheckpoint) {
  for (const bool behind : {false, true}) {
    Scratch scratch;
    Scratch after;
    const std::string directory = scratch / "run/checkpoints";
    // The step that was saved last, and what may be read of the steps.
    std::int64_t saved = -1;
    std::map<std::int64_t, std::set<float>> values;
    int states = 0;
    Watch* watching = nullptr;
    const auto check = [&] {
      watching->disk().each_state(after / "disk", [&] {
        ++states;
        const auto newest = format::newest_step(after / "disk/run/checkpoints");
        if (saved < 0 && !newest) return;
        const std::string calls = ::testing::PrintToString(watching->calls());
        ASSERT_TRUE(newest.has_value()) << "step " << saved << " is lost after " << calls;
        ASSERT_GE(newest->step, saved) << calls;
        try {
          format::Reader reader(newest->path);
          reader.verify();
          const format::LogicalTensor* tensor = reader.manifest().find("model.weight");
          ASSERT_NE(tensor, nullptr);
          const std::vector<char> bytes = reader.read(*tensor);
          const auto* numbers = reinterpret_cast<const float*>(bytes.data());
          EXPECT_TRUE(values[newest->step].contains(numbers[0])) << numbers[0] << calls;
          for (std::int64_t i = 1; i < kFloats; ++i) EXPECT_EQ(numbers[i], numbers[0]);
        } catch (const Error& error) {
          ADD_FAILURE() << "a power cut after " << calls << ": " << error.what();
        }
      });
    };
    Watch watch(scratch.path(), [&] { check(); });
    watching = &watch;
    const auto save_next = [&](std::int64_t step, float value, int keep_last) {
      values[step].insert(value);
      save_on_three(directory, step, value, behind, keep_last);
      saved = step;
      values[step] = {value};
      watch.disk().forget_states();
      check();
    };
    save_next(1, 1, 0);
    // Once more, as a run does that goes on after it had ended and was continued otherwise.
    save_next(1, 1.5F, 0);
    save_next(2, 2, 1);
    save_next(3, 3, 2);
    save_next(4, 4, 2);
    EXPECT_GT(states, 50);
    EXPECT_THAT(watch.calls(), ::testing::Contains("exchange /run/checkpoints/step-1"));
    EXPECT_THAT(watch.calls(), ::testing::Contains("rename /run/checkpoints/.removing-step-1"));
  }
}

TEST(PowerCut, ADiskThatDoesNotTakeTheBytesIsAnErrorAndThePreviousCheckpointStays) {
  int failures = 0;
  for (int failing = 0;; ++failing) {
    Scratch scratch;
    const std::string directory = scratch / "checkpoints";
    save_on_three(directory, 1, 1, false);
    Watch watch(scratch.path());
    watch.failing_sync = failing;
    bool thrown = false;
    try {
      save_on_three(directory, 2, 2, false);
    } catch (const Error& error) {
      thrown = true;
      EXPECT_EQ(error.kind(), ErrorKind::kOutput) << error.what();
    }
    const auto newest = format::newest_step(directory);
    ASSERT_TRUE(newest.has_value());
    format::Reader(newest->path).verify();
    if (!thrown) {
      EXPECT_EQ(newest->step, 2);
      break;
    }
    ++failures;
  }
  // Three ranks' data, the manifest, the folder of the step and the folder of all.
  EXPECT_EQ(failures, 6);
}

}  // namespace
}  // namespace shoal::checkpoint::power_cut_test
