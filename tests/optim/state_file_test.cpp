#include "shoal/optim/state_file.h"

#include <ATen/ops/linspace.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "shoal/base/error.h"
#include "shoal/optim/optimizer.h"

namespace shoal::optim::state_file_test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

class StateFile : public ::testing::Test {
 protected:
  StateFile() {
    std::string pattern = (fs::temp_directory_path() / "shoal-state-XXXXXX").string();
    folder_ = ::mkdtemp(pattern.data());
  }
  ~StateFile() override { fs::remove_all(folder_); }

  /// Whether an address lies in a mapping of a file of the folder, as the kernel sees it.
  bool in_folder(const void* address) const {
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);) {
      std::size_t dash = 0;
      const auto begin = std::stoull(line, &dash, 16);
      const auto end = std::stoull(line.substr(dash + 1), nullptr, 16);
      const auto at = reinterpret_cast<std::uintptr_t>(address);
      if (at >= begin && at < end) return line.find(folder_) != std::string::npos;
    }
    return false;
  }

  std::string folder_;
};

TEST_F(StateFile, HoldsZerosThatCanBeWrittenAndLeavesNothingBehind) {
  const void* address = nullptr;
  {
    const at::Tensor state = zeros_in_file(folder_ + "/made/for/it", 3000, at::kFloat);
    address = state.const_data_ptr();
    EXPECT_TRUE(in_folder(address));
    EXPECT_TRUE(state.equal(at::zeros({3000}, at::kFloat)));
    state.fill_(2);
    EXPECT_EQ(state.sum().item<float>(), 6000);
    EXPECT_TRUE(fs::is_empty(folder_ + "/made/for/it")) << "the file has no name";
  }
  EXPECT_FALSE(in_folder(address));
  EXPECT_EQ(zeros_in_file(folder_, 0, at::kFloat).numel(), 0);
}

TEST_F(StateFile, TheMappingAloneKeepsTheFile) {
  const auto open_files = [] {
    return std::distance(fs::directory_iterator("/proc/self/fd"), fs::directory_iterator());
  };
  const auto before = open_files();
  const at::Tensor state = zeros_in_file(folder_, 100, at::kBFloat16);
  EXPECT_EQ(open_files(), before);
  EXPECT_EQ(state.nbytes(), 200u);
  EXPECT_THROW(zeros_in_file("/proc/no/such", 8, at::kFloat), Error);
  EXPECT_EQ(open_files(), before);
}

TEST_F(StateFile, AFullDiskShowsBeforeTraining) {
  const auto before = ::signal(SIGXFSZ, SIG_IGN);
  rlimit limit{};
  ::getrlimit(RLIMIT_FSIZE, &limit);
  const rlimit small{100'000, limit.rlim_max};
  ::setrlimit(RLIMIT_FSIZE, &small);
  try {
    zeros_in_file(folder_, 1 << 20, at::kFloat);
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kOutput);
    EXPECT_THAT(error.what(), AllOf(HasSubstr("4194304 bytes"), HasSubstr(folder_)));
  }
  ::setrlimit(RLIMIT_FSIZE, &limit);
  ::signal(SIGXFSZ, before);
  EXPECT_THROW(zeros_in_file("/proc/no/such", 8, at::kFloat), Error);
}

TEST_F(StateFile, AnOptimizerWhoseStateLiesThereUpdatesTheSame) {
  const auto run = [&](const std::string& folder, at::ScalarType type) {
    const at::Tensor weight = at::linspace(-1, 1, 1000, at::kFloat).to(type).view({10, 100});
    const auto optimizer = make_optimizer({{"weight", weight, true}}, AdamWOptions{},
                                          {.moments = at::kBFloat16, .folder = folder});
    EXPECT_EQ(in_folder(optimizer->states()[0].tensor.const_data_ptr()), !folder.empty());
    EXPECT_EQ(in_folder(optimizer->master(0).const_data_ptr()),
              type != at::kFloat && !folder.empty());
    for (int step = 1; step <= 5; ++step)
      optimizer->step({at::linspace(step, -2, 1000, at::kFloat).view({10, 100})}, 1e-2);
    return weight;
  };
  for (const auto type : {at::kFloat, at::kBFloat16})
    EXPECT_TRUE(run("", type).equal(run(folder_, type)));
}

}  // namespace
}  // namespace shoal::optim::state_file_test
