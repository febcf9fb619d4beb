#include "shoal/train/member_changes.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>

#include "shoal/train/config/job_file.h"
#include "shoal/train/config/keys.h"
#include "shoal/train/config/members.h"

namespace shoal::train {
namespace {

/// Returns true for a key on which it depends what each rank of a member owns, beside the extents
/// of the axes, which RunRecord::members has.
bool decides_ownership(const ConfigKey& key) {
  static constexpr std::array kOwnership{"zero_stage",
                                         "layouts",
                                         "expert_parallel_degree",
                                         "pipeline_parallel_schedule",
                                         "pipeline_parallel_schedule_csv",
                                         "pipeline_parallel_virtual_stages",
                                         "pipeline_parallel_stage_units",
                                         "pipeline_parallel_stages_by",
                                         "shard_units",
                                         "shard_unit_size",
                                         "shard_unit_names"};
  return key.section == "parallelism" &&
         std::find(kOwnership.begin(), kOwnership.end(), key.name) != kOwnership.end();
}

std::string some_members(int begin, int end) {
  if (end - begin == 1) return fmt::format("member {}", begin);
  return fmt::format("members {} to {}", begin, end - 1);
}

/// Returns what is lost of members that do not go on.
std::string lost_steps(const JobConfig& config, std::int64_t step) {
  const std::int64_t every = config.low_communication.every;
  if (is_streaming(config))
    return "what they have trained since their last exchange of each fragment is lost";
  if (step % every == 0) return "they had just exchanged, and nothing of theirs is lost";
  return fmt::format("what they have trained in the {} step{} since the last exchange is lost",
                     step % every, step % every == 1 ? "" : "s");
}

}  // namespace

// The text begins with the number.
int members_of(const RunRecord& record) {
  const std::string& text = record.members;
  int count = 0;
  std::from_chars(text.data(), text.data() + text.size(), count);
  return count;
}

bool has_same_members(const RunRecord& saved, const RunRecord& now) {
  if (saved.members.empty() && now.members.empty()) return true;
  if (saved.members != now.members) return false;
  const JobConfig before = parse_job(saved.job, saved.job_file).config;
  const JobConfig after = parse_job(now.job, now.job_file).config;
  const auto& keys = all_keys();
  return std::none_of(keys.begin(), keys.end(), [&](const ConfigKey& key) {
    return decides_ownership(key) && value_text(key, before) != value_text(key, after);
  });
}

std::string describe_member_changes(const RunRecord& saved, const RunRecord& now) {
  if (has_same_members(saved, now)) return "";
  const JobConfig before = parse_job(saved.job, saved.job_file).config;
  const int old = members_of(saved);
  const int count = members_of(now);
  if (old == 0) {
    return fmt::format(
        "Members: step {} had none. Its model is the anchor of {} members; each begins with it and "
        "with the state of its optimizer. The momentum of the outer optimizer begins with zeros.",
        saved.step, count);
  }
  if (count == 0) {
    return fmt::format(
        "Members: step {} had {}, and the run goes on without from their anchor, with the mean of "
        "the states of their optimizers; {}. The momentum of the outer optimizer ends, and so does "
        "what a codec still owes.",
        saved.step, old, lost_steps(before, saved.step));
  }
  std::string text =
      fmt::format("Members: {} at step {} -> {}.", saved.members, saved.step, now.members);
  text += fmt::format(" Kept: {}, with their own parameters and optimizer state.",
                      old == count ? "all" : some_members(0, std::min(old, count)));
  if (count > old) {
    text +=
        fmt::format(" New: {}, with the anchor and the mean of the states of all saved optimizers.",
                    some_members(old, count));
  }
  if (count < old) {
    text += fmt::format(" Gone: {}; {}.", some_members(count, old), lost_steps(before, saved.step));
  }
  text += " Anchor and momentum of the outer optimizer go on";
  const bool codec = before.low_communication.codec != collective::Codec::kNone;
  if (codec && old != count)
    text += "; what the codec still owes all members is added to the next sums";
  if (is_streaming(before)) {
    text +=
        "; exchanges in flight were finished at once, and fragments are cut anew where ranks "
        "own other values";
  }
  return text + ".";
}

}  // namespace shoal::train
