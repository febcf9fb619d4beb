#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

namespace shoal::apps::plan_program {

/// An exit status, and all that was printed.
struct Outcome {
  int code = -1;
  std::string text;
};

/// Runs the program `shoal` with these words behind it.
inline Outcome run(const std::string& words) {
  Outcome outcome;
  FILE* pipe = popen((std::string(SHOAL_PROGRAM) + " " + words + " 2>&1").c_str(), "r");
  std::array<char, 4096> part;
  while (const std::size_t n = std::fread(part.data(), 1, part.size(), pipe))
    outcome.text.append(part.data(), n);
  const int status = pclose(pipe);
  outcome.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return outcome;
}

inline nlohmann::json json_of(const std::string& words) {
  const Outcome outcome = run(words + " --json");
  EXPECT_EQ(outcome.code, 0) << outcome.text;
  return nlohmann::json::parse(outcome.text);
}

/// A folder for the files of one test.
struct Folder {
  Folder()
      : path(std::filesystem::temp_directory_path() / ("shoal_plan_" + std::to_string(getpid()))) {
    std::filesystem::create_directories(path);
  }
  ~Folder() { std::filesystem::remove_all(path); }
  std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(path / name) << text;
    return (path / name).string();
  }
  std::filesystem::path path;
};

}  // namespace shoal::apps::plan_program
