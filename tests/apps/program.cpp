#include "tests/apps/program.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <thread>

namespace shoal::apps::testing {
namespace {

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::string contents(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

std::filesystem::path new_file() {
  std::string name = (std::filesystem::temp_directory_path() / "shoal-test-XXXXXX").string();
  const int file = ::mkstemp(name.data());
  ::close(file);
  return name;
}

}  // namespace

Program::Program(const std::vector<std::string>& words, const std::filesystem::path& folder,
                 const std::map<std::string, std::string>& environment)
    : out_(new_file()), err_(new_file()), begin_(now()) {
  process_ = ::fork();
  if (process_ != 0) return;
  for (const char* launcher :
       {"TORCHELASTIC_RUN_ID", "OMPI_COMM_WORLD_RANK", "SLURM_STEP_NUM_TASKS"})
    ::unsetenv(launcher);
  for (const auto& [name, value] : environment) ::setenv(name.c_str(), value.c_str(), 1);
  ::dup2(::open(out_.c_str(), O_WRONLY | O_APPEND), STDOUT_FILENO);
  ::dup2(::open(err_.c_str(), O_WRONLY | O_APPEND), STDERR_FILENO);
  std::vector<char*> arguments;
  for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  if (::chdir(folder.c_str()) == 0) ::execv(arguments[0], arguments.data());
  ::_exit(127);
}

Program::~Program() {
  if (process_ > 0) wait(0);
  std::filesystem::remove(out_);
  std::filesystem::remove(err_);
}

void Program::signal(int number) const { ::kill(process_, number); }

bool Program::ended() const {
  siginfo_t info{};
  return ::waitid(P_PID, static_cast<id_t>(process_), &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
         info.si_pid == process_;
}

Outcome Program::wait(double longest) {
  Outcome outcome;
  int status = 0;
  const double until = now() + longest;
  while (::waitpid(process_, &status, WNOHANG) == 0) {
    if (now() > until) ::kill(process_, SIGKILL);
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  process_ = -1;
  outcome.seconds = now() - begin_;
  outcome.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  outcome.signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
  outcome.out = contents(out_), outcome.err = contents(err_);
  return outcome;
}

Outcome run(const std::vector<std::string>& words, const std::filesystem::path& folder,
            const std::map<std::string, std::string>& environment, double longest) {
  return Program(words, folder, environment).wait(longest);
}

std::string shoal_program() { return SHOAL_PROGRAM; }

Folder::Folder() {
  std::string name = (std::filesystem::temp_directory_path() / "shoal-test-XXXXXX").string();
  path_ = ::mkdtemp(name.data());
}

Folder::~Folder() { std::filesystem::remove_all(path_); }

void Folder::write(const std::string& name, const std::string& text) const {
  std::filesystem::create_directories((path_ / name).parent_path());
  std::ofstream(path_ / name, std::ios::binary) << text;
}

std::string Folder::read(const std::string& name) const { return contents(path_ / name); }

bool appears(const Folder& folder, const std::string& name, double longest) {
  for (const double until = now() + longest; now() < until;
       std::this_thread::sleep_for(std::chrono::milliseconds(10)))
    if (!folder.read(name).empty()) return true;
  return false;
}

}  // namespace shoal::apps::testing
