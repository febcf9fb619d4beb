#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace shoal::train {

/// A file with a line a step, each appended by one write, so that a crash can tear the last line at
/// most.
class StepLines {
 public:
  /// Opens `path`, a file of `what` ("metrics"), and cuts off every line for which `keeps` returns
  /// false, with those behind it, and a torn last one. Throws Error(output), and Error(data) with
  /// file and line where `keeps` throws it.
  StepLines(const std::string& path, const char* what,
            const std::function<bool(const std::string& line)>& keeps);
  StepLines(const StepLines&) = delete;
  StepLines& operator=(const StepLines&) = delete;
  ~StepLines();

  void append(const std::string& line);  ///< throws Error(output)

  /// Calls `visit` for every line of such a file that is whole, in order, until it returns false.
  /// Nothing where there is no file. Throws Error(data) with file and line where `visit` throws it.
  static void read(const std::string& path, const char* what,
                   const std::function<bool(const std::string& line)>& visit);

 private:
  std::string path_;
  const char* what_;
  int descriptor_ = -1;
};

}  // namespace shoal::train
