// A test program that links this file ends before its first test where there is no etcd, with the
// code that ctest takes for skipped. tests/expected_skips.txt names these programs.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>

#include "shoal/wire/http_client.h"
#include "tests/support/etcd_server.h"

namespace shoal::testing {
namespace {

constexpr int kSkipped = 77;

class NeedsEtcd final : public ::testing::Environment {
 public:
  void SetUp() override {
    if (!EtcdServer::program().empty() && wire::HttpClient::is_available()) return;
    std::printf("skipped: there is no etcd: tools/setup_peers.sh etcd unpacks it\n");
    std::exit(kSkipped);
  }
};

[[maybe_unused]] const auto* const registered = ::testing::AddGlobalTestEnvironment(new NeedsEtcd);

}  // namespace
}  // namespace shoal::testing
