#include "shoal/comm/host_engine.h"

#include "shoal/comm/host_shared_buffer.h"

namespace shoal::comm {
namespace {

using collective::Handle;
using collective::HostCommunicator;

class HostWork final : public WorkState {
 public:
  HostWork(std::shared_ptr<HostCommunicator> communicator, Handle handle)
      : communicator_(std::move(communicator)), handle_(handle), started_(Clock::now()) {}

  void order() override {
    watch([&] {
      communicator_->wait(handle_);
      return true;
    });
  }
  void wait(Deadline deadline) override {
    watch([&] {
      communicator_->wait(handle_, deadline);
      return true;
    });
  }
  bool test() override {
    return watch([&] { return communicator_->test(handle_); });
  }
  void abort() override { communicator_->abort(Error(ErrorKind::kAborted, "work", "the caller aborted it").in(handle_)); }
  std::exception_ptr error() const override { return error_; }
  Duration duration() const override { return duration_; }

 private:
  template <class Step>
  bool watch(Step&& step) {
    try {
      const bool done = step();
      if (done && duration_ == Duration::zero()) duration_ = Clock::now() - started_;
      return done;
    } catch (...) {
      error_ = std::current_exception();
      throw;
    }
  }

  std::shared_ptr<HostCommunicator> communicator_;
  Handle handle_;
  Clock::time_point started_;
  Duration duration_{};
  std::exception_ptr error_;
};

}  // namespace

HostEngine::HostEngine(std::shared_ptr<HostCommunicator> communicator, std::shared_ptr<wire::Arena> arena, bool threads)
    : communicator_(std::move(communicator)), arena_(std::move(arena)), threads_(threads) {}

Work HostEngine::start(const Call& call) {
  const Handle handle = communicator_->start(call.operation);
  if (call.blocking) {
    communicator_->wait(handle);
    release();
    return {};
  }
  release();
  InFlight& entry = in_flight_.emplace_back(InFlight{handle, call.inputs.vec()});
  entry.tensors.insert(entry.tensors.end(), call.outputs.begin(), call.outputs.end());
  return Work(std::make_shared<HostWork>(communicator_, handle));
}

void HostEngine::poll() {
  communicator_->poll(Duration::zero());
  release();
}

void HostEngine::release() {
  while (!in_flight_.empty() && communicator_->complete(in_flight_.front().handle)) in_flight_.pop_front();
}

std::shared_ptr<Engine> HostEngine::split(int color, int key) {
  std::shared_ptr<collective::Communicator> part = communicator_->split(color, key);
  if (!part) return nullptr;
  return std::make_shared<HostEngine>(std::static_pointer_cast<HostCommunicator>(part), arena_, threads_);
}

std::shared_ptr<SharedBuffer> HostEngine::shared_buffer(std::size_t bytes) { return make_host_shared_buffer(communicator_, arena_, threads_, bytes); }

bool HostEngine::visible_to_peers(const at::Tensor& tensor) const {
  return communicator_->world().memory().locate(tensor.const_data_ptr(), tensor.nbytes()).visible();
}

}  // namespace shoal::comm
