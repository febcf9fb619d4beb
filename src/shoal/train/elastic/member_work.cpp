#include "shoal/train/elastic/member_work.h"

#include <fmt/format.h>

#include <utility>

#include "shoal/base/duration.h"
#include "shoal/base/hex.h"
#include "shoal/base/span_recorder.h"
#include "shoal/train/fault.h"

namespace shoal::train {

namespace elastic = collective::elastic;
using collective::Communicator;

void carry_out(Communicator& group, const collective::Operation& operation, const char* name,
               const std::function<void()>& in_the_middle) {
  const ScopedCommunication time(name);
  const collective::Handle begun = group.start(operation);
  in_the_middle();
  group.wait(begun);
}

std::vector<double> gather(Communicator& group, std::span<const double> own) {
  std::vector<double> all(own.size() * static_cast<std::size_t>(group.size()));
  carry_out(group,
            {.kind = collective::Kind::kAllGather,
             .type = ElementType::kF64,
             .buffer = {.input = own.data(), .output = all.data(), .count = own.size()}},
            "gather");
  return all;
}

MemberWork::MemberWork(const RunOptions& options, Run& run, StateTensors tensors,
                       OnCommit on_commit)
    : options_(options),
      run_(run),
      tensors_(std::move(tensors)),
      state_(tensors_),
      on_commit_(std::move(on_commit)) {}

std::vector<std::byte> MemberWork::write() {
  const auto held = hold_state();
  const RunRecord record = common_record();
  std::vector<std::byte> bytes = state_.write(record);
  // Whoever begins a group asks for its own state too.
  const bool lies = has_entered_ && inject_fault_of_member(options_.job.config.debug,
                                                           member_place::kGive, record.step + 1);
  if (lies) bytes.back() ^= std::byte{1};
  return bytes;
}

void MemberWork::enter(std::string self, const Digest& state) {
  self_ = std::move(self);
  committed_ = state;
  has_entered_ = true;
}

void MemberWork::check_state() const {
  if (state_.digest(common_record()) == committed_) return;
  throw Error(ErrorKind::kData, "elastic",
              fmt::format("the state of member {} is not the one that all had behind step {}",
                          self_, common_record().step))
      .hint("Is its memory in order? When it joins again it gets the state from the others.");
}

void MemberWork::committed(const elastic::StepResult& step, LineageStep line) {
  line.epoch = static_cast<std::int64_t>(step.view.epoch);
  line.instruction_set = run_.record.instruction_set;
  line.before = hex(committed_);
  line.state = hex(step.state);
  committed_ = step.state;
  on_commit_(step, std::move(line));
}

void MemberWork::read(std::span<const std::byte> bytes) {
  const std::int64_t own_step = run_.record.step;
  const RunRecord group = state_.read(bytes, run_.record);
  if (run_.checkpoint && own_step > group.step) {
    throw Error(ErrorKind::kConfig, "elastic",
                fmt::format("{} is of a later step than that of the group, {}", *run_.checkpoint,
                            group.step))
        .hint("--run-dir DIR takes another directory for this member");
  }
  run_.record.move_to(group);
  run_.record.loss_scale = group.loss_scale;
  if (run_.loss_scale && group.loss_scale) run_.loss_scale->restore(*group.loss_scale);
  if (fault_at(member_place::kTake)) make_wrong(tensors_.to_save());
}

RankBatch MemberWork::read_batch(const SampleRange& samples) {
  const auto begin = Clock::now();
  RankBatch batch = member_batch(*run_.data, run_.record.samples, run_.batch, samples);
  data_wait_s_ = to_seconds(Clock::now() - begin);
  share_ = static_cast<double>(samples.count) / static_cast<double>(run_.batch.global);
  return batch;
}

bool MemberWork::fault_at(const char* place) const {
  return inject_fault_of_member(options_.job.config.debug, place, run_.record.step + 1);
}

// In a tensor that the digest covers: of a weight with a master, that is the master. The highest
// bit of the first number's fraction, with which another gradient is computed too.
void MemberWork::make_wrong(const std::vector<checkpoint::StateItem>& items) {
  const at::Tensor tensor = items.front().local;
  static_cast<unsigned char*>(tensor.data_ptr())[tensor.element_size() - 2] ^= 0x40;
}

}  // namespace shoal::train
