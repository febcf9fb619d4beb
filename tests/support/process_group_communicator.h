#pragma once

#include <c10/util/intrusive_ptr.h>

#include <memory>

#include "shoal/base/clock.h"
#include "shoal/collective/communicator.h"

namespace c10d {
class Backend;
class ProcessGroup;
class Store;
}  // namespace c10d

namespace shoal::comm {

/// A communicator over a backend of PyTorch that the caller has made: ProcessGroupGloo, or any
/// other c10d::Backend for CPU tensors. Ranks are those of the backend. No memory is shared.
///
/// `store` is one that all ranks of the backend have. Through it they tell each other why they
/// stop, so that the first cause is known on all of them; without it (null) only their deadlines
/// end the others. `split` needs it too, and a backend that can split. Tags go up to 2^31 - 1.
/// Messages that are in flight take a thread each: backends know of their arrival only when
/// somebody waits.
std::shared_ptr<collective::Communicator> process_group_communicator(
    c10::intrusive_ptr<c10d::Backend> backend, c10::intrusive_ptr<c10d::Store> store,
    Duration timeout = std::chrono::minutes(10));

/// The same over the group's backend for CPU tensors and its store.
std::shared_ptr<collective::Communicator> process_group_communicator(
    const c10::intrusive_ptr<c10d::ProcessGroup>& group,
    Duration timeout = std::chrono::minutes(10));

}  // namespace shoal::comm
