#pragma once

#include <vector>

#include "shoal/base/clock.h"
#include "shoal/checkpoint/checkpoint.h"
#include "shoal/comm/group.h"

namespace shoal::checkpoint {

/// Decides which rank reads which item. An item that several ranks of one host hold alike is read
/// by one of them and copied to the others, so that a host reads every byte once.
class HostReading {
 public:
  /// Collective over `group`.
  HostReading(const std::vector<StateItem>& items, const comm::Group& group, Duration timeout);

  /// Returns true when this rank reads item `index`.
  bool reads(std::size_t index) const;
  /// Copies each item from the rank that has read it to the others. Collective, after all have
  /// read.
  void share(const std::vector<StateItem>& items) const;

 private:
  /// Items that the same ranks hold alike.
  struct Alike {
    comm::Group ranks;
    std::vector<std::size_t> items;
    std::vector<int> readers;  ///< by item: a rank of `ranks`
  };

  std::vector<Alike> alike_;
};

}  // namespace shoal::checkpoint
