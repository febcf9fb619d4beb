#include "apps/shoal/cluster_file.h"
#include "tests/fuzz/fuzz.h"

// Descriptions of clusters and their devices.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace shoal;
  plan::Cluster cluster;
  if (!fuzz::accepted(
          [&] { cluster = apps::parse_cluster(fuzz::text_of(data, size), "cluster.toml"); }))
    return 0;
  fuzz::must(apps::parse_cluster(apps::to_toml(cluster), "cluster.toml") == cluster,
             "a cluster reads as it is written");
  return 0;
}
