#include "shoal/comm/host_engine.h"

#include "shoal/comm/host_shared_buffer.h"

namespace shoal::comm {

using collective::HostCommunicator;

HostEngine::HostEngine(std::shared_ptr<HostCommunicator> communicator,
                       std::shared_ptr<wire::Arena> arena, bool threads)
    : CommunicatorEngine(std::move(communicator), arena),
      arena_(std::move(arena)),
      threads_(threads) {}

std::shared_ptr<Engine> HostEngine::split(int color, int key) {
  std::shared_ptr<collective::Communicator> part = communicator()->split(color, key);
  if (!part) return nullptr;
  return std::make_shared<HostEngine>(std::static_pointer_cast<HostCommunicator>(part), arena_,
                                      threads_);
}

std::shared_ptr<SharedBuffer> HostEngine::shared_buffer(std::size_t bytes) {
  return make_host_shared_buffer(host_communicator(), arena_, threads_, bytes);
}

bool HostEngine::visible_to_peers(const at::Tensor& tensor) const {
  return host_communicator()
      ->world()
      .memory()
      .locate(tensor.const_data_ptr(), tensor.nbytes())
      .visible();
}

}  // namespace shoal::comm
