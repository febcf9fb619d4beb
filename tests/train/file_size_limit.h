#pragma once

#include <signal.h>
#include <sys/resource.h>

namespace shoal::train {

/// While it lives no file of this process grows beyond `bytes`: what a full disk is to a writer,
/// without filling one.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) {
    // Without a handler the signal would end the process; ignored, the write fails with EFBIG.
    action_ = ::signal(SIGXFSZ, SIG_IGN);
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{bytes, before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;
  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    ::signal(SIGXFSZ, action_);
  }

 private:
  rlimit before_{};
  sighandler_t action_ = SIG_DFL;
};

}  // namespace shoal::train
