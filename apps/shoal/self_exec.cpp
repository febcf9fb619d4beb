#include "apps/shoal/self_exec.h"

#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <utility>

#include "apps/shoal/app_library.h"
#include "apps/shoal/exit_code.h"
#include "shoal/base/error.h"
#include "shoal/base/system_error.h"

namespace shoal::apps {
namespace {

/// A file in memory that takes a program's output. Unlike a pipe it cannot fill up and block the
/// program.
class OutputFile {
 public:
  OutputFile() : file_(::memfd_create("shoal-output", MFD_CLOEXEC)) {
    if (file_ < 0) throw system_error(ErrorKind::kResource, "program", "cannot make shared memory");
  }
  ~OutputFile() { ::close(file_); }
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  int descriptor() const { return file_; }
  std::string text() const {
    std::string text;
    std::array<char, 4096> part;
    for (;;) {
      const ssize_t n = ::pread(file_, part.data(), part.size(), static_cast<off_t>(text.size()));
      if (n <= 0) return text;
      text.append(part.data(), static_cast<std::size_t>(n));
    }
  }

 private:
  int file_;
};

}  // namespace

void die_with_parent(int parent) {
  // A group of its own: a Ctrl-C at the terminal reaches the launcher alone, which passes it on in
  // order.
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  // The parent may have died before the call above; no signal comes then.
  if (::getppid() != parent) ::_exit(1);
}

void exec_self(const std::vector<std::string>& arguments) {
  const std::string name = program_path();
  std::vector<char*> argv{const_cast<char*>(name.c_str())};
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  // Not by name: the file may have been replaced by another build since this process started.
  ::execv("/proc/self/exe", argv.data());
}

SelfRun run_self(const std::vector<std::string>& arguments) {
  const OutputFile out;
  const OutputFile err;
  const pid_t parent = ::getpid();
  const pid_t process = ::fork();
  if (process < 0) throw system_error(ErrorKind::kResource, "program", "cannot be started again");
  if (process == 0) {
    die_with_parent(parent);
    ::dup2(out.descriptor(), STDOUT_FILENO);
    ::dup2(err.descriptor(), STDERR_FILENO);
    exec_self(arguments);
    ::_exit(127);
  }
  int status = 0;
  while (::waitpid(process, &status, 0) < 0 && errno == EINTR) {
  }
  return {WIFSIGNALED(status) ? signal_exit_code(WTERMSIG(status)) : WEXITSTATUS(status),
          out.text(), err.text()};
}

std::string output_of_self(const std::vector<std::string>& arguments, const std::string& operation,
                           const std::string& failure) {
  SelfRun answer = run_self(arguments);
  if (answer.code != 0)
    throw Error(ErrorKind::kInternal, operation, failure + ":\n" + answer.out + answer.err);
  return std::move(answer.out);
}

}  // namespace shoal::apps
