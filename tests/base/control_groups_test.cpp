#include "shoal/base/control_groups.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace shoal::control_groups_test {
namespace {

class ControlGroups : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = testing::TempDir() + "shoal-groups-XXXXXX";
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  void write(const std::string& path, const std::string& text) {
    const std::filesystem::path file(folder_ + "/" + path);
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text << "\n";
  }
  void write_version_1_quota(const std::string& group, const std::string& granted,
                             const std::string& period) {
    write("mount/cpu/" + group + "/cpu.cfs_quota_us", granted);
    write("mount/cpu/" + group + "/cpu.cfs_period_us", period);
  }
  std::vector<ControlGroup> groups(const std::string& controller) {
    return control_groups(controller, folder_ + "/membership", folder_ + "/mount");
  }

  std::string folder_;
};

TEST_F(ControlGroups, OfVersion2LimitEachOnItsLevel) {
  write("membership", "0::/slurm/job_7/step_0");
  write("mount/slurm/job_7/step_0/memory.max", "max");
  write("mount/slurm/job_7/memory.max", "2000000000");
  write("mount/slurm/memory.max", "8000000000");
  write("mount/slurm/job_7/step_0/cpu.max", "max 100000");
  write("mount/slurm/cpu.max", "150000 100000");
  EXPECT_EQ(groups("memory").size(), 4U);  // and the root
  EXPECT_EQ(memory_limit(groups("memory")), 2000000000U);
  EXPECT_DOUBLE_EQ(processor_quota(groups("cpu")), 1.5);
}

TEST_F(ControlGroups, TheLeastLimitCountsOnWhateverLevelItIs) {
  write("membership", "0::/a/b");
  write("mount/a/b/memory.max", "5000000000");
  write("mount/a/memory.max", "3000000000");
  write("mount/memory.max", "4000000000");
  write("mount/a/b/cpu.max", "300000 100000");
  write("mount/a/cpu.max", "100000 50000");
  write("mount/cpu.max", "250000 100000");
  EXPECT_EQ(memory_limit(groups("memory")), 3000000000U);
  EXPECT_DOUBLE_EQ(processor_quota(groups("cpu")), 2);
}

TEST_F(ControlGroups, AnUnlimitedOneAndNonsenseLimitNothing) {
  write("membership", "0::/a");
  write("mount/a/memory.max", "1152921504606846977");  // 2^60 + 1
  write("mount/a/cpu.max", "100000 0");
  write("mount/cpu.max", "0 100000");
  EXPECT_EQ(memory_limit(groups("memory")), std::nullopt);
  EXPECT_EQ(processor_quota(groups("cpu")), 0);
  write("mount/a/memory.max", "1152921504606846976");
  EXPECT_EQ(memory_limit(groups("memory")), std::uint64_t{1} << 60);
  EXPECT_EQ(number_in(folder_ + "/mount/a/none"), std::nullopt);
  write("mount/a/cpu.max", "200000 100000");
  EXPECT_EQ(processor_quota(groups("cpu")), 2) << "no time at all, above it, is no quota";
}

TEST_F(ControlGroups, OfVersion1LieByController) {
  write("membership", "5:cpu,cpuacct:/docker/x\n4:memory:/docker/x\n3:cpuset:/");
  EXPECT_EQ(groups("memory").size(), 3U);
  EXPECT_EQ(groups("cpuset").size(), 1U);
  write("mount/memory/docker/x/memory.limit_in_bytes", "9223372036854771712");
  write("mount/memory/docker/memory.limit_in_bytes", "3000000000");
  write_version_1_quota("docker/x", "100000", "50000");
  write_version_1_quota("docker", "-1", "100000");
  EXPECT_EQ(memory_limit(groups("memory")), 3000000000U);
  EXPECT_DOUBLE_EQ(processor_quota(groups("cpu")), 2);
}

TEST_F(ControlGroups, OfVersion1WithoutAQuotaLimitNothing) {
  write("membership", "5:cpu,cpuacct:/docker/x");
  write_version_1_quota("docker/x", "-1", "100000");
  EXPECT_EQ(processor_quota(groups("cpu")), 0);
}

TEST_F(ControlGroups, ThatAreNotThereLimitNothing) {
  EXPECT_TRUE(groups("memory").empty());
  write("membership", "no such line\n4:memory\n0::/");
  EXPECT_EQ(groups("memory").size(), 1U);
  EXPECT_EQ(memory_limit(groups("memory")), std::nullopt);
  EXPECT_EQ(processor_quota(groups("cpu")), 0);
}

}  // namespace
}  // namespace shoal::control_groups_test
