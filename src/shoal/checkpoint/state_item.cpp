#include "shoal/checkpoint/state_item.h"

#include <set>

#include "shoal/base/check.h"

namespace shoal::checkpoint {

std::vector<format::Box> boxes_of(const StateItem& item) {
  std::vector<format::Box> boxes;
  for (const mesh::Box& box : item.boxes) boxes.push_back({box.begin, box.end});
  // A rank with no boxes and no element holds nothing of a tensor that others hold.
  if (boxes.empty() && (item.local.numel() > 0 || format::count_of(item.global_shape) == 0))
    boxes.push_back(format::whole(item.global_shape));
  std::int64_t count = 0;
  for (const format::Box& box : boxes) {
    SHOAL_USER_CHECK(format::fits(box, item.global_shape), "checkpoint",
                     "tensor '{}': box {} to {} does not lie in {}", item.name,
                     format::text(box.begin), format::text(box.end),
                     format::text(item.global_shape));
    count += box.count();
  }
  SHOAL_USER_CHECK(count == item.local.numel(), "checkpoint",
                   "tensor '{}': its boxes have {} elements, local has {}", item.name, count,
                   item.local.numel());
  return boxes;
}

void check_items(const std::vector<StateItem>& items) {
  std::set<std::string> names;
  for (const StateItem& item : items) {
    SHOAL_USER_CHECK(!item.name.empty() && names.insert(item.name).second, "checkpoint",
                     "tensor name '{}' is empty or stands twice", item.name);
    SHOAL_USER_CHECK(item.replica >= 0 && item.replica < item.replicas, "checkpoint",
                     "tensor '{}': replica {} of {}", item.name, item.replica, item.replicas);
    SHOAL_USER_CHECK(item.local.defined() && item.local.is_contiguous(), "checkpoint",
                     "tensor '{}' is undefined or not contiguous", item.name);
  }
}

}  // namespace shoal::checkpoint
