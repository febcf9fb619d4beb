#pragma once

#include <memory>
#include <vector>

#include "shoal/comm/group.h"

namespace shoal::parallel {

/// A pool of memory that the ranks of one host share. A unit lies in a slot of it while the unit is
/// gathered. All ranks take and give back slots in the same order.
///
/// A slot that is given back is kept for the next unit that fits, so that a steady step allocates
/// nothing.
class HostSlots {
 public:
  using Slot = std::shared_ptr<comm::SharedBuffer>;
  explicit HostSlots(comm::Group host) : host_(std::move(host)) {}

  /// Takes a slot of at least `bytes`, whose contents are arbitrary. When no free slot fits, it
  /// makes one, which is collective.
  Slot take(std::size_t bytes);
  /// Gives a slot back. Other ranks may still read it: the next all_gather into it starts to write
  /// only when all ranks of the host have called it (Options::shared_output).
  void give_back(const Slot& slot);
  /// Chooses what becomes of slots that are made from now on when they are given back: `true` keeps
  /// them for other units, `false` frees them.
  void keep_new(bool keep) { keep_new_ = keep; }
  /// Blocks until all ranks of the host have called it.
  void node_barrier() const { host_.barrier(); }

  int rank() const { return host_.rank(); }
  int ranks() const { return host_.size(); }

 private:
  struct Entry {
    Slot slot;
    bool taken = true;
    bool kept = true;
  };

  comm::Group host_;
  std::vector<Entry> entries_;
  bool keep_new_ = true;
};

}  // namespace shoal::parallel
