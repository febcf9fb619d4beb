#include "shoal/train/elastic/elastic_member.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <span>
#include <utility>

#include "shoal/base/duration.h"
#include "shoal/base/hex.h"
#include "shoal/train/config/elastic.h"
#include "shoal/train/config/members.h"
#include "shoal/train/elastic/former_members.h"
#include "shoal/train/elastic/member_state.h"
#include "shoal/train/elastic/rounds.h"
#include "shoal/train/elastic/synchronous_steps.h"
#include "shoal/train/job_options.h"
#include "shoal/wire/join_token.h"
#include "shoal/wire/secret_file.h"

namespace shoal::train {
namespace {

namespace elastic = collective::elastic;

/// So long a process that comes back looks for its group at least.
constexpr Duration kLeastSearch = std::chrono::seconds(5);

/// A group without a key_file is on one host, where whoever reaches it may join.
constexpr const char* kKeyOnOneHost = "members on one host";

std::string key_in(const std::string& file) {
  if (file.empty()) return kKeyOnOneHost;
  return wire::read_secret(file, "elastic.key_file",
                           "head -c 32 /dev/urandom | base64 > key, copied to each host");
}

/// The leader tells the others this of the group, and then its name in it.
struct Entered {
  collective::membership::Digest state{};
  std::uint64_t has_joined = 0;
};

elastic::LetterCarrier::Options network_options(const Job& job, int ranks) {
  const JobConfig& config = job.config;
  const ElasticSection& section = config.elastic;
  elastic::LetterCarrier::Options options;
  options.width = static_cast<std::uint32_t>(ranks);
  options.mesh = describe_mesh(job, ranks);
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

}  // namespace

std::unique_ptr<MemberWork> ElasticMember::make_work() {
  const auto on_commit = [this](const elastic::StepResult& step, const LineageStep& line) {
    note_members(step.view);
    // A commit in which nobody has trained is none of the run.
    if (!line.members.empty()) lineage_->append(line);
  };
  if (has_members(options_.job.config))
    return std::make_unique<Rounds>(options_, run_, ranks_, on_commit);
  return std::make_unique<SynchronousSteps>(options_, run_, ranks_, on_commit);
}

ElasticMember::ElasticMember(const RunOptions& options, Run& run)
    : options_(options),
      section_(options.job.config.elastic),
      run_(run),
      ranks_(run.group, {.answer = longest_wait(options.job.config),
                         .part = from_seconds(options.job.config.elastic.step_timeout_s)}),
      network_(network_options(options.job, ranks_.size())),
      work_(make_work()),
      columns_(ranks_, column_options()),
      state_{.write = [this] { return work_->write(); },
             .read = [this](std::span<const std::byte> bytes) { work_->read(bytes); }} {
  check_one_host();
  MemberRanks::Bytes entered;
  if (ranks_.leads()) {
    auto side = std::make_unique<LeadingSide>(ranks_, columns_, state_, group_);
    leading_ = side.get();
    side_ = std::move(side);
    entered = leading_->while_others_wait([this] { return enter(); });
  } else {
    auto side = std::make_unique<FollowingSide>(ranks_, columns_, state_);
    following_ = side.get();
    side_ = std::move(side);
    entered = following_->wait_for_leader();
  }
  Entered known;
  std::memcpy(&known, entered.data(), sizeof known);
  const auto* const text = reinterpret_cast<const char*>(entered.data());
  work_->enter(std::string(text + sizeof known, text + entered.size()), known.state);
  if (known.has_joined != 0) run_.checkpoint.reset();
}

MemberColumns::Options ElasticMember::column_options() const {
  MemberColumns::Options options;
  options.network = network_;
  options.world.timeout = from_seconds(section_.step_timeout_s);
  options.meeting_timeout = elastic::ElasticGroup::Options().meeting_timeout;
  return options;
}

// All listen at one address, and the launcher that ends them together is of one host.
void ElasticMember::check_one_host() const {
  const int here = run_.group.on_host().size();
  if (here == ranks_.size()) return;
  throw Error(
      ErrorKind::kConfig, "elastic",
      fmt::format("the {} ranks of this member are on several hosts, {} of them on this one",
                  ranks_.size(), here))
      .at(run_.group.rank(), run_.group.size())
      .hint("start one member on each host, with --nproc N: they are a group");
}

/// Returns what the other ranks must know of it.
MemberRanks::Bytes ElasticMember::enter() {
  find_group();
  for (const auto& member : group_->view().members) known_.push_back(member.id);
  notes_.push_back(fmt::format("Member {}: others join with --elastic --join {}.",
                               group_->self().text(), group_->endpoint().text()));
  lineage_.emplace(run_.directory.lineage(), run_.record.step, hex(group_->view().state));
  write_address();
  keep_addresses(group_->view());
  const Entered entered{.state = group_->view().state, .has_joined = has_joined_ ? 1U : 0U};
  const std::string self = group_->self().text();
  const auto head = std::as_bytes(std::span(&entered, 1));
  const auto tail = std::as_bytes(std::span(self));
  MemberRanks::Bytes bytes(head.begin(), head.end());
  bytes.insert(bytes.end(), tail.begin(), tail.end());
  return bytes;
}

void ElasticMember::find_group() {
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
  has_joined_ = true;
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
  options.network = network_;
  // All gradients are one operation, which must hold what members differ in: over a slow link that
  // takes longer than the waits of a job. Silence ends it before.
  options.step_timeout = from_seconds(section_.step_timeout_s);
  options.world.timeout = options.step_timeout;
  // In a round each member comes when it has done its own step.
  if (has_members(options_.job.config)) options.meeting_timeout = options.step_timeout;
  options.state.write = [this] { return leading_->write(); };
  options.state.read = [this](std::span<const std::byte> bytes) { leading_->read(bytes); };
  // When a joiner asks, the other ranks of a member are in the middle of a step.
  options.state.steady = has_members(options_.job.config) && ranks_.is_alone();
  options.state.digest = ranks_.is_alone() ? RunState::digest_of : digest_of_member_state;
  options.on_fault = [log = options_.log](const Error& error) { log.warning("{}", error.what()); };
  options.may_go_on = [this] {
    if (const int signal = asked_to_stop(options_)) throw StoppedWhileWaiting(signal);
    // A member without one of its ranks is none.
    ranks_.check();
  };
  options.at = [this](elastic::Moment moment) {
    work_->fault_at(moment == elastic::Moment::kNewView ? member_place::kView
                                                        : member_place::kReport);
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
  if (following_) {
    following_->wait_for_leader();
    return;
  }
  leading_->while_others_wait([&]() -> MemberRanks::Bytes {
    if (members > 1 && has_begun_)
      group_->wait_for_members(members, Deadline::in(std::chrono::hours(24)));
    return {};
  });
}

StepResult ElasticMember::step(const StepInput& input) { return work_->step(*side_, input); }

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

std::vector<std::string> ElasticMember::take_notes() { return std::exchange(notes_, {}); }

std::string ElasticMember::other_member() const {
  if (!group_) return "";
  for (const auto& member : group_->view().members) {
    if (member.id != group_->self() && !member.endpoints.empty())
      return member.endpoints.front().text();
  }
  return "";
}

void ElasticMember::leave() {
  if (following_) {
    following_->wait_for_leader();
    return;
  }
  leading_->while_others_wait([&]() -> MemberRanks::Bytes {
    if (!group_->leave()) {
      options_.log.warning(
          "the others have not agreed to leaving in time: they find out by silence");
    }
    return {};
  });
}

}  // namespace shoal::train
