#include "shoal/train/elastic/member_work.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "shoal/base/duration.h"
#include "shoal/base/hex.h"
#include "shoal/train/fault.h"

namespace shoal::train {

namespace elastic = collective::elastic;

MemberWork::MemberWork(const RunOptions& options, Run& run, const MemberRanks& ranks,
                       StateTensors tensors, OnCommit on_commit)
    : options_(options),
      run_(run),
      ranks_(ranks),
      tensors_(std::move(tensors)),
      state_(tensors_),
      on_commit_(std::move(on_commit)) {}

std::vector<std::byte> MemberWork::write() {
  const auto held = hold_state();
  const RunRecord record = common_record();
  std::vector<std::byte> bytes = state_.write(record);
  // Whoever begins a group asks for its own state too.
  const bool lies =
      has_entered_ && inject_fault_of_member(options_.job.config.debug, member_place::kGive,
                                             record.step + 1, ranks_.rank(), ranks_.size());
  if (lies) bytes.back() ^= std::byte{1};
  return bytes;
}

void MemberWork::enter(std::string self, const Digest& state) {
  self_ = std::move(self);
  committed_ = state;
  has_entered_ = true;
}

void MemberWork::check_state() const {
  if (of_all_ranks(state_.digest(common_record())) == committed_) return;
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
  // The leader writes down what all have done.
  if (ranks_.leads()) on_commit_(step, std::move(line));
}

void MemberWork::read(std::span<const std::byte> bytes) {
  const std::int64_t own_step = run_.record.step;
  // Other ranks of this member may see the parameters that this one owns.
  run_.applied.reduction->begin_update();
  const RunRecord group = state_.read(bytes, run_.record);
  run_.applied.reduction->end_update();
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
  RankBatch batch = member_batch(*run_.data, run_.record.samples, run_.batch,
                                 samples_of_rank(run_.batch, samples, run_.share));
  data_wait_s_ = to_seconds(Clock::now() - begin);
  share_ = static_cast<double>(samples.count) / static_cast<double>(run_.batch.global);
  return batch;
}

bool MemberWork::fault_at(const char* place) const {
  return inject_fault_of_member(options_.job.config.debug, place, run_.record.step + 1,
                                ranks_.rank(), ranks_.size());
}

// In a tensor that the digest covers: of a weight with a master, that is the master. The highest
// bit of the first number's fraction, with which another gradient is computed too.
void MemberWork::make_wrong(const std::vector<checkpoint::StateItem>& items) {
  const auto has_values = [](const checkpoint::StateItem& item) { return item.local.numel() > 0; };
  const at::Tensor tensor = std::find_if(items.begin(), items.end(), has_values)->local;
  static_cast<unsigned char*>(tensor.data_ptr())[tensor.element_size() - 2] ^= 0x40;
}

}  // namespace shoal::train
