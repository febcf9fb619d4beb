#pragma once

#include "shoal/collective/operation.h"

namespace shoal::collective {

/// Throws Error(usage) for an operation that makes no sense for `rank` among `size` ranks: every
/// communicator calls it first, so that all transports refuse the same calls with the same kind of
/// error. `carrier` names the transport in the message: "TCP", "shared memory". `to_self`: the
/// transport delivers messages of a rank to itself.
///
/// Refused are: reductions that no fold supports, memory that is not the host's, a shared output
/// (HierarchicalCommunicator, which offers it, checks without it), a root or peer that is no rank,
/// a message to the rank itself unless `to_self`, per-rank counts of another length than the
/// group's, an all_to_all in place, and a codec for anything but an all_reduce of one buffer of f32
/// by sum.
void check_operation(const Operation& operation, int rank, int size, const char* carrier,
                     bool to_self = false);

/// Throws Error(mismatch) where per-rank counts disagree about what the rank sends itself. No
/// message carries that part, so no other rank can find the difference. Counts that disagree
/// between two ranks end the operation on all of them, and so must this: a communicator whose
/// `start` meets it aborts. Comes after check_operation.
void check_own_part(const Operation& operation, int rank, int size);

}  // namespace shoal::collective
