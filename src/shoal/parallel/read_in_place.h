#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "shoal/comm/group.h"

namespace shoal::parallel {

/// Lends `own` to the other ranks of a group, and calls `read` with what all have lent
/// (Group::lend_in_place). Returns false, on every rank and without having called `read`, where the
/// ranks cannot read in place: the caller then sends copies.
///
/// It returns when every rank has read. So the caller may write to its tensor at once, and what a
/// rank holds does not depend on which rank is ahead. `read` keeps no tensor of what was lent.
/// Collective.
template <class Read>
bool read_in_place(const comm::Group& ranks, const at::Tensor& own, std::int64_t dim,
                   const Read& read) {
  std::optional<comm::Lent> lent = ranks.lend_in_place(own, dim);
  if (!lent) return false;
  read(*lent);
  lent.reset();
  // A rank comes here when it has given back what it has read. The group then drops what it kept.
  ranks.barrier();
  return true;
}

}  // namespace shoal::parallel
