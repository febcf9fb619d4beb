// A communicator over a library whose transfers fail when they are told to.
#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "shoal/base/error.h"
#include "shoal/comm/library_communicator.h"

namespace shoal::comm::failing_library_test {
namespace {

/// Is never complete to `done`, fails in the first wait, and then claims to be complete: MPI
/// forgets a request that has failed.
class FailingTransfer final : public Transfer {
 public:
  bool done() override { return failed_; }
  bool wait_briefly(Duration) override {
    if (!std::exchange(failed_, true)) throw Error(ErrorKind::kMismatch, "recv", "4 of 8 bytes");
    return true;
  }

 private:
  bool failed_ = false;
};

class FailingLibrary final : public LibraryCommunicator {
 public:
  explicit FailingLibrary(std::vector<Error>& published)
      : LibraryCommunicator("a library", 0, 2, std::chrono::seconds(60), {}),
        published_(published) {}

 protected:
  std::unique_ptr<Transfer> post(const Request&) override {
    return std::make_unique<FailingTransfer>();
  }
  std::unique_ptr<collective::Communicator> part(int, int, const std::vector<int>&) override {
    return nullptr;
  }
  void publish_failure(const Error& cause) override { published_.push_back(cause); }
  std::optional<Error> poll_failure(bool) override { return std::nullopt; }

 private:
  std::vector<Error>& published_;
};

ErrorKind kind_of_failure(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.kind();
  }
  ADD_FAILURE() << "no error";
  return ErrorKind::kInternal;
}

void expect_a_failure_that_stays(void (*make_progress)(LibraryCommunicator&, collective::Handle)) {
  std::vector<Error> published;
  FailingLibrary library(published);
  float value = 0;
  const auto handle = library.start({.kind = collective::Kind::kReceive,
                                     .type = ElementType::kF32,
                                     .buffer = {nullptr, &value, 1},
                                     .peer = 1});
  EXPECT_EQ(kind_of_failure([&] { make_progress(library, handle); }), ErrorKind::kMismatch);
  ASSERT_EQ(published.size(), 1u);  // the other ranks learn of it
  EXPECT_EQ(published[0].kind(), ErrorKind::kMismatch);
  EXPECT_EQ(kind_of_failure([&] { library.wait(handle, Deadline::never()); }),
            ErrorKind::kMismatch);
  EXPECT_EQ(kind_of_failure([&] { library.start({.kind = collective::Kind::kBarrier}); }),
            ErrorKind::kMismatch);
  EXPECT_EQ(published.size(), 1u);
}

TEST(LibraryCommunicator, AFailureInPollIsRecordedAndPublished) {
  expect_a_failure_that_stays([](LibraryCommunicator& library, collective::Handle) {
    library.poll(std::chrono::seconds(60));
  });
}

TEST(LibraryCommunicator, AFailureInWaitIsRecordedAndPublished) {
  expect_a_failure_that_stays([](LibraryCommunicator& library, collective::Handle handle) {
    library.wait(handle, Deadline::never());
  });
}

}  // namespace
}  // namespace shoal::comm::failing_library_test
