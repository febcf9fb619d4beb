// A run whose communicator fails with an exception that is none of Shoal's.
#include "shoal/train/trainer.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <new>
#include <stdexcept>
#include <vector>

#include "shoal/collective/communicator.h"
#include "tests/train/small_job.h"
#include "tests/train/temporary_folder.h"

namespace shoal::train::trainer_test {
namespace {

/// Rank 0 of 2. Throws `Failure` when it is to start an operation, and notes the causes of aborts.
template <class Failure>
class BrokenCommunicator final : public collective::Communicator {
 public:
  explicit BrokenCommunicator(std::vector<Error>& aborts) : aborts_(aborts) {}

  int rank() const override { return 0; }
  int size() const override { return 2; }
  bool supports(collective::Kind, ElementType, collective::Reduction) const override {
    return true;
  }
  collective::Handle start(const collective::Operation&) override { throw Failure(); }
  bool test(collective::Handle) override { return true; }
  bool complete(collective::Handle) const override { return true; }
  void wait(collective::Handle, Deadline) override {}
  void poll(Duration) override {}
  bool idle() const override { return true; }
  std::uint64_t sequence() const override { return 0; }
  std::string report() const override { return {}; }
  std::unique_ptr<Communicator> split(int, int) override { throw Failure(); }
  void abort(const Error& cause) override { aborts_.push_back(cause); }

 private:
  std::vector<Error>& aborts_;
};

/// As LibTorch's text: the cause, then a stack trace.
struct TracedError : std::runtime_error {
  TracedError() : std::runtime_error("it broke\nframe #0: somewhere") {}
};

template <class Failure>
std::vector<Error> aborts_of_a_run() {
  const TemporaryFolder folder;
  prepare_small_text(folder.path() + "/data");
  std::filesystem::create_directories(folder.path() + "/run");
  std::vector<Error> aborts;
  RunOptions options;
  options.job = parse_job(small_job(folder.path() + "/data"), "small.toml", {});
  options.run_directory = folder.path() + "/run";
  options.console = false;
  options.world = comm::Group(std::make_shared<BrokenCommunicator<Failure>>(aborts));
  EXPECT_THROW(train(options), Failure);
  return aborts;
}

TEST(Trainer, TellsTheOtherRanksOfAnExceptionThatIsNotShoals) {
  const auto aborts = aborts_of_a_run<TracedError>();
  ASSERT_EQ(aborts.size(), 1u);
  EXPECT_EQ(aborts[0].kind(), ErrorKind::kInternal);
  EXPECT_EQ(aborts[0].message(), "it broke");
  EXPECT_EQ(aborts[0].rank(), 0);
}

TEST(Trainer, TellsTheOtherRanksThatMemoryRanOut) {
  const auto aborts = aborts_of_a_run<std::bad_alloc>();
  ASSERT_EQ(aborts.size(), 1u);
  EXPECT_EQ(aborts[0].kind(), ErrorKind::kResource);
}

}  // namespace
}  // namespace shoal::train::trainer_test
