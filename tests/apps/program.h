#pragma once

#include <sys/types.h>

#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace shoal::apps::testing {

/// In seconds: for what ends sooner on any machine, and not at all where something is wrong.
constexpr double kLongest = 600;

/// How a program ended and what it wrote.
struct Outcome {
  int code = -1;  ///< exit code; -1 when a signal killed it
  int signal = 0;
  std::string out, err;
  double seconds = 0;
};

/// A program at work in `folder`; `environment` adds to this process's, from which the variables of
/// launchers are taken.
class Program {
 public:
  Program(const std::vector<std::string>& words, const std::filesystem::path& folder,
          const std::map<std::string, std::string>& environment = {});
  ~Program();
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  pid_t process() const { return process_; }
  void signal(int number) const;
  /// Tells whether it has ended; `wait` then returns how.
  bool ended() const;
  /// Waits at most `longest` seconds; a program that is still there then is killed, and the outcome
  /// shows SIGKILL.
  Outcome wait(double longest = kLongest);

 private:
  std::filesystem::path out_, err_;
  pid_t process_ = -1;
  double begin_ = 0;
};

Outcome run(const std::vector<std::string>& words, const std::filesystem::path& folder,
            const std::map<std::string, std::string>& environment = {}, double longest = kLongest);

/// The program under test.
std::string shoal_program();

/// A new folder that is removed with this object.
class Folder {
 public:
  Folder();
  ~Folder();
  const std::filesystem::path& path() const { return path_; }
  void write(const std::string& name, const std::string& text) const;
  std::string read(const std::string& name) const;
  bool has(const std::string& name) const { return std::filesystem::exists(path_ / name); }

 private:
  std::filesystem::path path_;
};

/// Waits until `name` is in `folder` and not empty; false after `longest` seconds.
bool appears(const Folder& folder, const std::string& name, double longest = kLongest);

}  // namespace shoal::apps::testing
