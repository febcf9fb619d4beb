#include "shoal/train/config/step_lines.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>

#include "shoal/base/system_error.h"

namespace shoal::train {
namespace {

/// Returns the offset behind the last line that was visited and of which `visit` returned true.
std::int64_t visit_lines(const std::string& path, const char* what,
                         const std::function<bool(const std::string&)>& visit) {
  std::ifstream file(path, std::ios::binary);
  std::int64_t end = 0;
  std::int64_t number = 0;
  // A last line without its end was cut off: getline then stops at the end of the file.
  for (std::string line; std::getline(file, line) && !file.eof();) {
    ++number;
    try {
      if (!visit(line)) break;
    } catch (const Error& error) {
      throw Error(ErrorKind::kData, what, fmt::format("{}:{}: {}", path, number, error.message()))
          .hint("--fresh moves the old run aside and starts anew");
    }
    end += static_cast<std::int64_t>(line.size()) + 1;
  }
  return end;
}

}  // namespace

void StepLines::read(const std::string& path, const char* what,
                     const std::function<bool(const std::string&)>& visit) {
  visit_lines(path, what, visit);
}

StepLines::StepLines(const std::string& path, const char* what,
                     const std::function<bool(const std::string&)>& keeps)
    : path_(path), what_(what) {
  // A run resumes from its last checkpoint, and steps behind it are trained again: their lines go,
  // as does a line that a crash cut off.
  const std::int64_t keep = visit_lines(path, what, keeps);
  descriptor_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (descriptor_ < 0) throw system_error(ErrorKind::kOutput, what, "cannot open " + path);
  if (::ftruncate(descriptor_, keep) != 0)
    throw system_error(ErrorKind::kOutput, what, "cannot cut " + path);
}

StepLines::~StepLines() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

void StepLines::append(const std::string& text) {
  const std::string line = text + "\n";
  // One write a line: a reader finds whole lines, also after this process was killed.
  const ssize_t written = ::write(descriptor_, line.data(), line.size());
  // A write to a file falls short only when the disk is full.
  if (written >= 0 && written != static_cast<ssize_t>(line.size())) errno = ENOSPC;
  if (written != static_cast<ssize_t>(line.size()))
    throw system_error(ErrorKind::kOutput, what_, "cannot write " + path_);
}

}  // namespace shoal::train
