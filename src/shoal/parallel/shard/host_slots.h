#pragma once

#include <memory>
#include <vector>

#include "shoal/comm/group.h"

namespace shoal::parallel {

/// Memory that the ranks of one host share, taken and given back by all of them in the same order:
/// where units lie while they are gathered.
///
/// What is given back is kept for the next unit that fits, so that a steady step takes no memory.
class HostSlots {
 public:
  using Slot = std::shared_ptr<comm::SharedBuffer>;
  explicit HostSlots(comm::Group host) : host_(std::move(host)) {}

  /// At least `bytes`; what others left there. Collective where no slot is free that fits.
  Slot take(std::size_t bytes);
  /// Other ranks may still read it: whoever takes it next begins to write when they do not
  /// (Options::shared_output).
  void give_back(const Slot& slot);
  /// false: what is made from here on goes when it is given back.
  void keep_new(bool keep) { keep_new_ = keep; }
  /// All ranks of the host have come here.
  void meet() const { host_.barrier(); }

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
