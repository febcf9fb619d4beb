#include "shoal/train/elastic/elastic_member.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "shoal/base/duration.h"
#include "shoal/base/hex.h"
#include "shoal/base/span_recorder.h"
#include "shoal/train/elastic/former_members.h"
#include "shoal/train/elastic/member_batch.h"
#include "shoal/train/fault.h"
#include "shoal/train/job_options.h"
#include "shoal/wire/join_token.h"
#include "shoal/wire/secret_file.h"

namespace shoal::train {
namespace {

namespace elastic = collective::elastic;
using collective::Communicator;
using collective::Kind;

/// So long a process that comes back looks for its group at least.
constexpr Duration kLeastSearch = std::chrono::seconds(5);

/// A group without a key_file is on one host, where whoever reaches it may join.
constexpr const char* kKeyOnOneHost = "members on one host";

std::string key_in(const std::string& file) {
  if (file.empty()) return kKeyOnOneHost;
  return wire::read_secret(file, "elastic.key_file",
                           "head -c 32 /dev/urandom | base64 > key, copied to each host");
}

elastic::LetterCarrier::Options network_options(const JobConfig& config) {
  const ElasticSection& section = config.elastic;
  elastic::LetterCarrier::Options options;
  options.key = key_in(section.key_file);
  options.cluster = config.job.name;
  options.host = section.listen;
  options.ports = wire::parse_port_range(section.ports);
  options.advertise = section.advertise;
  if (!section.token_key.empty()) options.admission = wire::parse_token_key(section.token_key);
  if (!section.token_file.empty()) {
    options.token = wire::read_secret(section.token_file, "elastic.token_file",
                                      "have a token issued: shoal token issue");
  }
  options.membership.suspect_after = from_seconds(section.suspect_after_s);
  options.membership.quorum_patience = from_seconds(section.quorum_patience_s);
  options.membership.on_quorum_loss = section.on_quorum_loss == OnQuorumLoss::kSurvivors
                                          ? collective::membership::OnQuorumLoss::kSurvivors
                                          : collective::membership::OnQuorumLoss::kStop;
  options.membership.chain_patience = from_seconds(section.etcd_patience_s);
  if (!section.etcd.empty()) {
    options.etcd =
        elastic::EtcdKeeper::Options{.addresses = section.etcd,
                                     .ca_file = section.etcd_ca_file,
                                     .prefix = fmt::format("shoal/{}/", config.job.name)};
  }
  return options;
}

/// Waits for an operation, in the time that RunTrace counts as communication. `in_the_middle` is
/// called when it has begun.
void carry_out(
    Communicator& group, const collective::Operation& operation, const char* name,
    const std::function<void()>& in_the_middle = [] {}) {
  const ScopedCommunication time(name);
  const collective::Handle begun = group.start(operation);
  in_the_middle();
  group.wait(begun);
}

/// Returns `count` numbers of each member, in the order of ranks.
std::vector<double> gather(Communicator& group, std::span<const double> own) {
  std::vector<double> all(own.size() * static_cast<std::size_t>(group.size()));
  carry_out(group,
            {.kind = Kind::kAllGather,
             .type = ElementType::kF64,
             .buffer = {.input = own.data(), .output = all.data(), .count = own.size()}},
            "gather");
  return all;
}

}  // namespace

ElasticMember::ElasticMember(const RunOptions& options, Run& run)
    : options_(options),
      section_(options.job.config.elastic),
      run_(run),
      state_(*run.state),
      undo_(*run.optimizer),
      sum_(run.optimizer->slices()) {
  enter();
  for (const auto& member : group_->view().members) known_.push_back(member.id);
  notes_.push_back(fmt::format("Member {}: others join with --elastic --join {}.",
                               group_->self().text(), group_->endpoint().text()));
  before_ = hex(group_->view().state);
  lineage_.emplace(run_.directory.lineage(), run_.record.step, before_);
  write_address();
  keep_addresses(group_->view());
}

void ElasticMember::enter() {
  std::vector<wire::Endpoint> contacts;
  for (const std::string& contact : section_.join)
    contacts.push_back(wire::parse_endpoint(contact));
  const auto former = read_former_members(run_.directory.members());
  if (contacts.empty()) return come_back(former);
  contacts.insert(contacts.end(), former.begin(), former.end());
  join(contacts, group_options());
}

void ElasticMember::begin() {
  group_ = elastic::ElasticGroup::found(group_options());
  has_begun_ = true;
}

void ElasticMember::join(const std::vector<wire::Endpoint>& contacts,
                         elastic::ElasticGroup::Options options) {
  group_ = elastic::ElasticGroup::join(std::move(options), contacts);
  run_.checkpoint.reset();
  notes_.push_back(fmt::format("Joined the group behind step {}.", run_.record.step));
}

// The process that begins a group may come back with the same command while the others train on: it
// must not begin a second one. That nobody is there any more is known where all hosts say so, or
// those who answer look for a group themselves.
void ElasticMember::come_back(const std::vector<wire::Endpoint>& former) {
  if (former.empty()) return begin();
  const std::vector<wire::Endpoint> there = not_refused(former);
  if (!there.empty()) {
    auto options = group_options();
    options.search_timeout =
        std::max<Duration>(kLeastSearch, 2 * options.network.membership.suspect_after);
    try {
      return join(there, std::move(options));
    } catch (const elastic::NoGroupFound& none) {
      if (none.joiners < there.size()) throw group_is_silent(there);
    }
  }
  notes_.push_back(
      fmt::format("None of the {} other member{} that this run was last with is there "
                  "any more: it begins a new group behind step {}.",
                  former.size(), former.size() == 1 ? "" : "s", run_.record.step));
  begin();
}

Error ElasticMember::group_is_silent(const std::vector<wire::Endpoint>& there) const {
  std::vector<std::string> addresses;
  for (const wire::Endpoint& address : there) addresses.push_back(address.text());
  return Error(
             ErrorKind::kPeerLost, "elastic",
             fmt::format("this run was last in a group with members at {}, who do not answer: the "
                         "group may train on without this host",
                         fmt::join(addresses, ", ")))
      .hint(fmt::format("--join HOST:PORT of a member where it lives; where it is gone, remove {}, "
                        "and the run goes on from its checkpoint",
                        run_.directory.members()));
}

// Members that were removed may live on where the job lets survivors go on by themselves.
void ElasticMember::keep_addresses(const elastic::View& view) const {
  std::vector<wire::Endpoint> addresses;
  const auto add = [&](const std::vector<collective::membership::Member>& members) {
    for (const auto& member : members) {
      if (member.id == group_->self()) continue;
      addresses.insert(addresses.end(), member.endpoints.begin(), member.endpoints.end());
    }
  };
  add(view.members);
  if (section_.on_quorum_loss == OnQuorumLoss::kSurvivors) add(view.removed);
  write_former_members(run_.directory.members(), addresses);
}

elastic::ElasticGroup::Options ElasticMember::group_options() {
  elastic::ElasticGroup::Options options;
  options.network = network_options(options_.job.config);
  // All gradients are one operation, which must hold what members differ in: over a slow link that
  // takes longer than the waits of a job. Silence ends it before.
  options.step_timeout = from_seconds(section_.step_timeout_s);
  options.world.timeout = options.step_timeout;
  options.state.write = [this] { return write(); };
  options.state.read = [this](std::span<const std::byte> bytes) { read(bytes); };
  options.state.digest = RunState::digest_of;
  options.on_fault = [log = options_.log](const Error& error) { log.warning("{}", error.what()); };
  options.at = [this](elastic::Moment moment) {
    fault_at(moment == elastic::Moment::kNewView ? member_place::kView : member_place::kReport);
  };
  return options;
}

/// At this address the others find this member, and scripts.
void ElasticMember::write_address() const {
  write_whole(run_.directory.address(),
              fmt::format("{}\n{}\n", group_->endpoint().text(), group_->self().text()));
}

void ElasticMember::wait_for_members() {
  const auto members = static_cast<std::size_t>(section_.members);
  // People start the others. A member that joins must not hold up a group that trains.
  if (members > 1 && has_begun_)
    group_->wait_for_members(members, Deadline::in(std::chrono::hours(24)));
}

RunRecord ElasticMember::record() const {
  RunRecord record = run_.record;
  if (run_.loss_scale) record.loss_scale = run_.loss_scale->state();
  return record;
}

std::vector<std::byte> ElasticMember::write() {
  take_back();
  std::vector<std::byte> bytes = state_.write(record());
  // Whoever begins a group asks for its own state too.
  if (group_ && fault_at(member_place::kGive)) bytes.back() ^= std::byte{1};
  return bytes;
}

void ElasticMember::read(std::span<const std::byte> bytes) {
  const std::int64_t own_step = run_.record.step;
  const RunRecord group = state_.read(bytes, run_.record);
  if (run_.checkpoint && own_step > group.step) {
    throw Error(ErrorKind::kConfig, "elastic",
                fmt::format("{} is of a later step than that of the group, {}", *run_.checkpoint,
                            group.step))
        .hint("--run-dir DIR takes another directory for this member");
  }
  run_.record.step = group.step;
  run_.record.samples = group.samples;
  run_.record.tokens = group.tokens;
  run_.record.loss_scale = group.loss_scale;
  if (run_.loss_scale && group.loss_scale) run_.loss_scale->restore(*group.loss_scale);
  if (fault_at(member_place::kTake)) make_state_wrong();
}

void ElasticMember::take_back() {
  if (!std::exchange(tried_, false)) return;
  undo_.restore();
  if (scale_before_) run_.loss_scale->restore(*scale_before_);
}

elastic::Attempt ElasticMember::attempt(Communicator& group, const elastic::Roster& roster,
                                        StepInput input) {
  take_back();
  // The last attempt may have failed because of what this member has. Of two members nobody else
  // could say which one is wrong.
  if (roster.attempt > 1) check_state();
  // Another attempt may have left its gradients.
  run_.model->clear_gradients();
  const auto begin = Clock::now();
  const RankBatch batch =
      member_batch(*run_.data, run_.record.samples, run_.batch, roster.rank, roster.size);
  data_wait_s_ = to_seconds(Clock::now() - begin);
  const double own[2] = {count_labels(batch.micro_batches, run_.share),
                         static_cast<double>(at::get_num_threads())};
  const std::vector<double> of_all = gather(group, own);
  parts_.clear();
  input.labels = 0;
  for (std::size_t i = 0; i < of_all.size(); i += 2) {
    parts_.push_back({of_all[i], of_all[i + 1]});
    input.labels += of_all[i];
  }
  StepSum sum = run_.step->accumulate(batch, input);
  sum_.set(sum.gradients);
  const std::span<float> values = sum_.values();
  carry_out(group,
            {.kind = Kind::kAllReduce,
             .type = ElementType::kF32,
             .buffer = {.input = values.data(), .output = values.data(), .count = values.size()}},
            "all_reduce", [this] { fault_at(member_place::kReduce); });
  const std::vector<double> losses = gather(group, std::span(&sum.loss, 1));
  sum.loss = 0;
  for (const double loss : losses) sum.loss += loss;
  sum.gradients = sum_.gradients();
  undo_.record();
  if (run_.loss_scale) scale_before_ = run_.loss_scale->state();
  tried_ = true;
  result_ = run_.step->update(std::move(sum), input);
  fault_at(member_place::kUpdate);
  if (input.poison == Poison::kState && roster.attempt == 1) make_state_wrong();
  const SampleRange samples = samples_of_member(run_.batch, roster.rank, roster.size);
  share_ = static_cast<double>(samples.count) / static_cast<double>(run_.batch.global);
  return {.state = state_.digest(run_.record_after_step()),
          .samples = static_cast<std::uint64_t>(samples.count)};
}

void ElasticMember::check_state() const {
  if (hex(state_.digest(record())) == before_) return;
  throw Error(ErrorKind::kData, "elastic",
              fmt::format("the state of member {} is not the one that all had behind step {}",
                          group_->self().text(), run_.record.step))
      .hint("Is its memory in order? When it joins again it gets the state from the others.");
}

/// Injects the fault of this place. Returns true where the state must be made wrong.
bool ElasticMember::fault_at(const char* place) const {
  return inject_fault_of_member(options_.job.config.debug, place, run_.record.step + 1);
}

// In a tensor that the digest covers: of a weight with a master, that is the master. The highest
// bit of the first number's fraction, with which another gradient is computed too.
void ElasticMember::make_state_wrong() {
  const at::Tensor tensor = run_.state->items_to_save().front().local;
  static_cast<unsigned char*>(tensor.data_ptr())[tensor.element_size() - 2] ^= 0x40;
}

StepResult ElasticMember::step(const StepInput& input) {
  const elastic::StepResult committed = group_->step(
      group_->next_step(),
      [&](const std::shared_ptr<Communicator>& group, const elastic::Roster& roster) {
        return attempt(*group, roster, input);
      },
      [this] {
        tried_ = false;
        if (fault_at(member_place::kCommit)) make_state_wrong();
      });
  note_members(committed.view);
  write_lineage(committed);
  return result_;
}

void ElasticMember::note_members(const elastic::View& view) {
  members_ = static_cast<std::int64_t>(view.members.size());
  std::vector<elastic::MemberId> now;
  for (const auto& member : view.members) now.push_back(member.id);
  if (now == known_) return;
  const auto missing_in = [](const auto& ids, const auto& others) {
    std::vector<std::string> missing;
    for (const auto& id : ids)
      if (!collective::membership::contains(others, id)) missing.push_back(id.text());
    return missing;
  };
  std::string note = fmt::format("Members: {} from step {} on", now.size(), run_.record.step + 1);
  if (const auto gone = missing_in(known_, now); !gone.empty())
    note += fmt::format("; gone: {}", fmt::join(gone, ", "));
  if (const auto come = missing_in(now, known_); !come.empty())
    note += fmt::format("; new: {}", fmt::join(come, ", "));
  notes_.push_back(note + ".");
  known_ = std::move(now);
  keep_addresses(view);
}

void ElasticMember::write_lineage(const elastic::StepResult& committed) {
  LineageStep line{.step = run_.record.step + 1,
                   .epoch = static_cast<std::int64_t>(committed.view.epoch),
                   .members = {},
                   .instruction_set = run_.record.instruction_set,
                   .before = before_,
                   .state = hex(committed.state)};
  const auto& members = committed.view.members;
  for (std::size_t i = 0; i < members.size(); ++i) {
    const SampleRange samples =
        samples_of_member(run_.batch, static_cast<std::int64_t>(i), members_);
    line.members.push_back({.id = members[i].id.text(),
                            .first_sample = run_.record.samples + samples.first,
                            .samples = samples.count,
                            .threads = static_cast<std::int64_t>(parts_[i].threads)});
  }
  lineage_->append(line);
  before_ = line.state;
}

std::vector<std::string> ElasticMember::take_notes() { return std::exchange(notes_, {}); }

std::string ElasticMember::other_member() const {
  for (const auto& member : group_->view().members) {
    if (member.id != group_->self() && !member.endpoints.empty())
      return member.endpoints.front().text();
  }
  return "";
}

void ElasticMember::leave() {
  if (!group_->leave())
    options_.log.warning("the others have not agreed to leaving in time: they find out by silence");
}

}  // namespace shoal::train
