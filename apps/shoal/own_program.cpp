#include "apps/shoal/own_program.h"

#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>

#include "apps/shoal/app_library.h"
#include "apps/shoal/exit_code.h"
#include "shoal/base/system_error.h"

namespace shoal::apps {
namespace {

/// Where a program's output goes until it is asked for.
class Kept {
 public:
  Kept() : file_(::memfd_create("shoal-answer", MFD_CLOEXEC)) {
    if (file_ < 0) throw system_error(ErrorKind::kResource, "program", "cannot make shared memory");
  }
  ~Kept() { ::close(file_); }
  Kept(const Kept&) = delete;
  Kept& operator=(const Kept&) = delete;

  int descriptor() const { return file_; }
  std::string text() const {
    std::string text;
    std::array<char, 4096> part;
    for (ssize_t n = 0;
         (n = ::pread(file_, part.data(), part.size(), static_cast<off_t>(text.size()))) > 0;)
      text.append(part.data(), static_cast<std::size_t>(n));
    return text;
  }

 private:
  int file_;
};

}  // namespace

void follow(int parent) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(1);
}

void become_own_program(const std::vector<std::string>& words) {
  const std::string name = program_path();
  std::vector<char*> arguments{const_cast<char*>(name.c_str())};
  for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  ::execv("/proc/self/exe", arguments.data());
}

Answer ask_own_program(const std::vector<std::string>& words) {
  const Kept out;
  const Kept err;
  const pid_t parent = ::getpid();
  const pid_t process = ::fork();
  if (process < 0) throw system_error(ErrorKind::kResource, "program", "cannot be started again");
  if (process == 0) {
    follow(parent);
    ::dup2(out.descriptor(), STDOUT_FILENO), ::dup2(err.descriptor(), STDERR_FILENO);
    become_own_program(words);
    ::_exit(127);
  }
  int status = 0;
  while (::waitpid(process, &status, 0) < 0 && errno == EINTR) {
  }
  return {WIFSIGNALED(status) ? signal_exit_code(WTERMSIG(status)) : WEXITSTATUS(status),
          out.text(), err.text()};
}

}  // namespace shoal::apps
