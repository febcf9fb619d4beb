#include "shoal/plan/placement.h"

#include <fmt/format.h>

#include "shoal/base/check.h"

namespace shoal::plan {

std::string Placement::text() const {
  switch (kind) {
    case Kind::kReplicate:
      return "replicate";
    case Kind::kShard:
      return fmt::format("shard({}{})", dim, cut == Cut::kZigzag ? ", zigzag" : "");
    case Kind::kPartial:
      return fmt::format("partial({})", name(reduction));
  }
  return "unknown";
}

Placement dual(const Placement& placement) {
  switch (placement.kind) {
    case Placement::Kind::kReplicate:
      return Placement::partial();
    case Placement::Kind::kPartial:
      SHOAL_USER_CHECK(placement.reduction == Reduction::kSum, "layout",
                       "only a partial sum has a gradient, not {}", placement.text());
      return Placement::replicate();
    case Placement::Kind::kShard:
      return placement;
  }
  return placement;
}

}  // namespace shoal::plan
