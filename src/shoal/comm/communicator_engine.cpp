#include "shoal/comm/communicator_engine.h"

namespace shoal::comm {
namespace {

using collective::Communicator;
using collective::Handle;

class CommunicatorWork final : public WorkState {
 public:
  CommunicatorWork(std::shared_ptr<Communicator> communicator, Handle handle)
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
  void abort() override {
    communicator_->abort(Error(ErrorKind::kAborted, "work", "the caller aborted it").in(handle_));
  }
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

  std::shared_ptr<Communicator> communicator_;
  Handle handle_;
  Clock::time_point started_;
  Duration duration_{};
  std::exception_ptr error_;
};

}  // namespace

CommunicatorEngine::CommunicatorEngine(std::shared_ptr<Communicator> communicator,
                                       std::shared_ptr<void> keep)
    : keep_(std::move(keep)), communicator_(std::move(communicator)) {}

Work CommunicatorEngine::start(const Call& call) {
  const Handle handle = communicator_->start(call.operation);
  if (call.blocking) {
    communicator_->wait(handle);
    release();
    return {};
  }
  release();
  InFlight& entry = in_flight_.emplace_back(InFlight{handle, call.inputs.vec()});
  entry.tensors.insert(entry.tensors.end(), call.outputs.begin(), call.outputs.end());
  return Work(std::make_shared<CommunicatorWork>(communicator_, handle));
}

void CommunicatorEngine::poll() {
  communicator_->poll(Duration::zero());
  release();
}

void CommunicatorEngine::release() {
  std::erase_if(in_flight_,
                [&](const InFlight& entry) { return communicator_->complete(entry.handle); });
}

std::shared_ptr<Engine> CommunicatorEngine::split(int color, int key) {
  std::shared_ptr<Communicator> part = communicator_->split(color, key);
  if (!part) return nullptr;
  return std::make_shared<CommunicatorEngine>(std::move(part), keep_);
}

}  // namespace shoal::comm
