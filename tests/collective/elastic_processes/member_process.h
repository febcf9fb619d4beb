#pragma once

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "shoal/base/clock.h"

namespace shoal::collective::elastic {

/// What a member has written of one committed step.
struct LineageStep {
  std::uint64_t step = 0;
  std::uint64_t epoch = 0;
  std::size_t keepers = 0;
  std::vector<std::string> members;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> samples;  ///< of each member
  std::string state;
  bool operator==(const LineageStep&) const = default;
};

/// A process of the elastic example, with a folder for what it writes. Killed at the end.
class MemberProcess {
 public:
  MemberProcess(const std::string& folder, std::vector<std::string> arguments) : folder_(folder) {
    std::filesystem::create_directories(folder);
    arguments.insert(arguments.begin(), SHOAL_ELASTIC_EXAMPLE);
    arguments.insert(arguments.end(),
                     {"--address-file", folder + "/address", "--lineage", folder + "/lineage"});
    std::vector<char*> words;
    for (std::string& argument : arguments) words.push_back(argument.data());
    words.push_back(nullptr);
    const std::string out = folder + "/stdout";
    const std::string err = folder + "/stderr";
    pid_ = ::fork();
    if (pid_ != 0) return;
    // Where the test itself is killed, nobody else would end it.
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    ::dup2(::open(out.c_str(), O_WRONLY | O_CREAT, 0600), 1);
    ::dup2(::open(err.c_str(), O_WRONLY | O_CREAT, 0600), 2);
    ::execv(words[0], words.data());
    ::_exit(127);
  }
  ~MemberProcess() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  MemberProcess(const MemberProcess&) = delete;
  MemberProcess& operator=(const MemberProcess&) = delete;

  void signal(int number) const { ::kill(pid_, number); }
  /// Waits for its end: its exit code, or the negative number of the signal that has killed it.
  /// 1000 where it goes on for too long.
  int wait(Deadline deadline) {
    for (; !deadline.passed(); pause()) {
      int status = 0;
      if (::waitpid(pid_, &status, WNOHANG) != pid_) continue;
      pid_ = -1;
      return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
    }
    return 1000;
  }
  /// Its address and its name, once it has written them; empty where it has ended before.
  std::string address(Deadline deadline) { return line_of_address(0, deadline); }
  std::string name(Deadline deadline) { return line_of_address(1, deadline); }

  std::vector<LineageStep> lineage() const {
    std::vector<LineageStep> steps;
    std::istringstream lines(text("lineage"));
    for (std::string line; std::getline(lines, line);) {
      // The last one may be incomplete.
      const auto json = nlohmann::json::parse(line, nullptr, false);
      if (json.is_discarded()) break;
      steps.push_back({json.at("step"), json.at("epoch"), json.at("keepers"), json.at("members"),
                       json.at("samples"), json.at("state")});
    }
    return steps;
  }
  std::string text(const std::string& file) const {
    std::ifstream in(folder_ + "/" + file);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  static void pause() { std::this_thread::sleep_for(std::chrono::milliseconds(20)); }

 private:
  std::string line_of_address(int number, Deadline deadline) {
    for (; !deadline.passed(); pause()) {
      std::istringstream lines(text("address"));
      std::string line;
      bool there = true;
      for (int i = 0; i <= number; ++i)
        there = there && static_cast<bool>(std::getline(lines, line));
      if (there) return line;
      siginfo_t end{};
      // It stays to be waited for.
      ::waitid(P_PID, static_cast<id_t>(pid_), &end, WEXITED | WNOHANG | WNOWAIT);
      if (end.si_pid == pid_) break;
    }
    return "";
  }

  std::string folder_;
  pid_t pid_ = -1;
};

}  // namespace shoal::collective::elastic
