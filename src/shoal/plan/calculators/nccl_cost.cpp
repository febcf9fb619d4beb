#include "shoal/plan/calculators/nccl_cost.h"

#include <algorithm>
#include <cmath>

#include "shoal/base/check.h"

namespace shoal::plan {
namespace {

struct Protocol {
  const char* name;
  double share;  ///< part of the link's bandwidth
  // Microseconds.
  double tree_base;
  double ring_base;
  double tree_inside;
  double ring_inside;
  double tree_between;
  double ring_between;
};
// baseLat and hwLat of NCCL's src/graph/tuning.cc. LL sends a flag with every word, so half of the
// bytes are data; LL128 sends 120 of 128 bytes.
constexpr Protocol kProtocols[] = {{"LL", 0.5, 6.8, 6.6, 0.6, 0.6, 5.0, 2.7},
                                   {"LL128", 0.92, 14.0, 14.0, 1.25, 1.9, 8.5, 4.0},
                                   {"Simple", 1, 8.4, 8.4, 4.0, 3.4, 14.0, 14.0}};

void validate(const NcclQuestion& question) {
  SHOAL_USER_CHECK(question.collective == "all_reduce" || question.collective == "all_gather" ||
                       question.collective == "reduce_scatter",
                   "nccl", "collective = {}: must be all_reduce, all_gather or reduce_scatter",
                   question.collective);
  for (const auto& [what, count] :
       {std::pair{"hosts", question.hosts}, {"per-host", question.per_host}}) {
    SHOAL_USER_CHECK(count >= 1 && count <= 10000000, "nccl",
                     "{} = {}: must lie between 1 and 10000000", what, count);
  }
  for (const auto& [what, value] : {std::pair{"bytes", question.bytes},
                                    {"inside", question.inside},
                                    {"between", question.between}}) {
    SHOAL_USER_CHECK(value > 0 && std::isfinite(value), "nccl", "{} = {}: must be positive", what,
                     value);
  }
}

}  // namespace

std::vector<NcclTime> nccl_times(const NcclQuestion& question) {
  validate(question);
  const double hosts = static_cast<double>(question.hosts);
  const double per_host = static_cast<double>(question.per_host);
  const double n = hosts * per_host;
  // An all-reduce goes round twice: a reduce-scatter, then an all-gather.
  const double passes = question.collective == "all_reduce" ? 2 : 1;
  const double link = question.hosts > 1 ? question.between : question.inside;
  std::vector<NcclTime> ways;
  for (const Protocol& p : kProtocols) {
    // Of the ring's n - 1 hops a pass, hosts - 1 leave a host.
    const double between = passes * (hosts - 1);
    ways.push_back({"ring", p.name, p.ring_base, passes * (n - 1) - between, between, p.ring_inside,
                    p.ring_between, passes * (n - 1) / n * question.bytes, p.share * link});
    if (passes == 2) {
      ways.push_back({"tree", p.name, p.tree_base, 2 * (per_host - 1), 2 * std::log2(hosts),
                      p.tree_inside, p.tree_between, 2 * question.bytes, p.share * link});
    }
  }
  std::stable_sort(ways.begin(), ways.end(),
                   [](const NcclTime& a, const NcclTime& b) { return a.seconds() < b.seconds(); });
  return ways;
}

}  // namespace shoal::plan
