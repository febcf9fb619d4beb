#include "shoal/checkpoint/format/store.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/fs.h>
#include <stdio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <string_view>

#include "shoal/base/number.h"
#include "shoal/base/system_error.h"
#include "shoal/checkpoint/format/manifest.h"

namespace shoal::checkpoint::format {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kStep = "step-", kWriting = ".writing-", kRemoving = ".removing-";

std::string writing_path(const std::string& directory, std::int64_t step) {
  return fmt::format("{}/{}{}{}", directory, kWriting, kStep, step);
}

Error failed(const std::string& what) {
  return system_error(ErrorKind::kOutput, "checkpoint", what)
      .hint("free space there or name another folder; complete checkpoints are as they were");
}

/// Takes the folder out of sight in one step before its files go one by one.
void remove_step(const std::string& directory, const std::string& path) {
  const std::string aside =
      fmt::format("{}/{}{}", directory, kRemoving, fs::path(path).filename().string());
  std::error_code ignored;
  fs::remove_all(aside, ignored);
  if (::rename(path.c_str(), aside.c_str()) != 0)
    throw failed(fmt::format("cannot remove '{}'", path));
  fs::remove_all(aside, ignored);
}

/// Returns true when there was a folder `to`, which is called `from` now.
bool rename_over(const std::string& from, const std::string& to) {
  if (::rename(from.c_str(), to.c_str()) == 0) return false;
  const std::string what = fmt::format("cannot rename '{}' to '{}'", from, to);
  // rename does not replace a folder with files in it. The exchange is atomic too: at no instant is
  // there no checkpoint of that name.
  if (errno != ENOTEMPTY && errno != EEXIST) throw failed(what);
  if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_EXCHANGE) != 0)
    throw failed(what);
  return true;
}

/// Makes a folder and those above it, each with its name on the disk.
void make_folder(const std::string& path) {
  std::error_code error;
  if (fs::is_directory(path, error)) return;
  const std::string above = fs::path(path).has_parent_path() ? fs::path(path).parent_path() : ".";
  make_folder(above);
  fs::create_directory(path, error);
  if (error) {
    errno = error.value();
    throw failed(fmt::format("cannot make '{}'", path));
  }
  sync_directory(above);
}

std::optional<std::int64_t> step_of(std::string_view name) {
  if (!name.starts_with(kStep)) return std::nullopt;
  name.remove_prefix(kStep.size());
  const auto step = parse_number<std::int64_t>(name);
  return step && *step >= 0 ? step : std::nullopt;
}

}  // namespace

std::string step_path(const std::string& directory, std::int64_t step) {
  return fmt::format("{}/{}{}", directory, kStep, step);
}

std::vector<Step> list_steps(const std::string& directory) {
  std::vector<Step> steps;
  std::error_code error;
  for (fs::directory_iterator it(directory, error), end; !error && it != end; it.increment(error)) {
    const auto step = step_of(it->path().filename().string());
    std::error_code ignored;
    // A folder of that name without a manifest is none of ours.
    if (step && fs::exists(it->path() / kManifestName, ignored))
      steps.push_back({*step, it->path().string()});
  }
  std::sort(steps.begin(), steps.end(),
            [](const Step& a, const Step& b) { return a.step < b.step; });
  return steps;
}

std::optional<Step> newest_step(const std::string& directory) {
  const auto steps = list_steps(directory);
  return steps.empty() ? std::nullopt : std::optional(steps.back());
}

std::string resolve_checkpoint(const std::string& path) {
  std::error_code ignored;
  if (fs::exists(fs::path(path) / kManifestName, ignored)) return path;
  for (const std::string& folder : {path, path + "/checkpoints"})
    if (const auto step = newest_step(folder)) return step->path;
  throw Error(ErrorKind::kInputMissing, "checkpoint",
              fmt::format("no checkpoint at '{}' (looked for {}, step-<n>, checkpoints/step-<n>)",
                          path, kManifestName));
}

std::string begin_step(const std::string& directory, std::int64_t step) {
  const std::string path = writing_path(directory, step);
  // A checkpoint on the disk is lost when the folder that holds it has no name there.
  make_folder(directory);
  std::error_code error;
  fs::remove_all(path, error);
  fs::create_directory(path, error);
  if (error) {
    errno = error.value();
    throw failed(fmt::format("cannot make '{}'", path));
  }
  return path;
}

std::string commit_step(const std::string& directory, std::int64_t step, bool sync) {
  const std::string from = writing_path(directory, step);
  const std::string to = step_path(directory, step);
  // First the names of the files, whose contents are synced already, then the name of the folder:
  // after a power cut `step-<n>` is whole or not there.
  if (sync) sync_directory(from);
  const bool replaced = rename_over(from, to);
  if (sync) sync_directory(directory);
  // Not before the exchange is on the disk: after a power cut the older files could have the name.
  std::error_code ignored;
  if (replaced) fs::remove_all(from, ignored);
  return to;
}

void abandon_step(const std::string& directory, std::int64_t step) noexcept {
  std::error_code ignored;
  fs::remove_all(writing_path(directory, step), ignored);
}

void prune_steps(const std::string& directory, int keep, std::optional<std::int64_t> saved) {
  std::vector<fs::path> rubbish;
  std::error_code error;
  for (fs::directory_iterator it(directory, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (name.starts_with(kWriting) || name.starts_with(kRemoving)) rubbish.push_back(it->path());
  }
  // Names that begin with a dot are of saves that did not come to their end. There is one writer,
  // and it is not writing now.
  for (const auto& path : rubbish) fs::remove_all(path, error);
  if (keep <= 0) return;
  const auto steps = list_steps(directory);
  for (std::size_t i = 0; i + keep < steps.size(); ++i)
    if (steps[i].step != saved) remove_step(directory, steps[i].path);
}

void sync_directory(const std::string& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  const bool done = descriptor >= 0 && ::fsync(descriptor) == 0;
  const int code = errno;
  if (descriptor >= 0) ::close(descriptor);
  errno = code;
  if (!done) throw failed(fmt::format("cannot reach the disk with folder '{}'", path));
}

}  // namespace shoal::checkpoint::format
