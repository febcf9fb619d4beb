// Training with processes that come and go. README.md has the commands.
#include <fmt/format.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "examples/15_elastic/tiny_model.h"
#include "shoal/base/hex.h"
#include "shoal/collective/elastic/elastic_group.h"
#include "shoal/wire/join_token.h"

namespace {

using namespace shoal;
using namespace shoal::collective;
using elastic::ElasticGroup;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr std::uint64_t kSamplesOfMember = 8;

volatile std::sig_atomic_t asked_to_leave = 0;
void ask_to_leave(int) { asked_to_leave = 1; }

struct Arguments {
  std::string key = "not a secret";
  std::string listen = "127.0.0.1";
  std::vector<wire::Endpoint> contacts;  ///< empty: this process begins the group
  std::string address_file;              ///< gets the address at which the others find this one
  std::string lineage;                   ///< gets a line for each step that is committed
  std::size_t members = 1;               ///< before the first step
  std::uint64_t steps = 1000;
  std::chrono::milliseconds pause{0};   ///< in each step, for those who watch
  std::optional<std::uint64_t> die_at;  ///< in this step
  std::string die_in = "reduce";        ///< at this place of it
  std::chrono::seconds suspect_after{2};
  membership::OnQuorumLoss on_quorum_loss = membership::OnQuorumLoss::kStop;
  std::chrono::seconds quorum_patience{10};
  bool as_witness = false;
  std::string admission_secret;               ///< others join with tokens that it has issued
  std::string token;                          ///< of a process that joins
  std::optional<std::chrono::seconds> issue;  ///< a token that is good for so long
};

membership::OnQuorumLoss policy(const std::string& name) {
  using membership::OnQuorumLoss;
  if (name == "witness") return OnQuorumLoss::kWitness;
  if (name == "survivors") return OnQuorumLoss::kSurvivors;
  if (name == "stop") return OnQuorumLoss::kStop;
  throw Error(ErrorKind::kUsage, "elastic", name + " is none of stop, witness, survivors");
}

bool is_witness(const std::string& role) {
  if (role == "witness") return true;
  throw Error(ErrorKind::kUsage, "elastic", role + " is no role but witness");
}

/// "commit" is when all are known to have made the step, and this one has not noted it yet; "view"
/// when others have come or gone, in that step or later.
std::string known_place(const std::string& place) {
  for (const char* known : {"view", "forward", "reduce", "update", "report", "commit"})
    if (place == known) return place;
  throw Error(ErrorKind::kUsage, "elastic", place + " is no place of a step");
}

Arguments parse(int count, char** words) {
  Arguments a;
  using Take = std::function<void(const std::string&)>;
  const std::map<std::string_view, Take> options{
      {"--key", [&](const auto& value) { a.key = value; }},
      {"--listen", [&](const auto& value) { a.listen = value; }},
      {"--join", [&](const auto& value) { a.contacts.push_back(wire::parse_endpoint(value)); }},
      {"--address-file", [&](const auto& value) { a.address_file = value; }},
      {"--lineage", [&](const auto& value) { a.lineage = value; }},
      {"--members", [&](const auto& value) { a.members = std::stoul(value); }},
      {"--steps", [&](const auto& value) { a.steps = std::stoull(value); }},
      {"--pause-ms", [&](const auto& value) { a.pause = milliseconds(std::stol(value)); }},
      {"--die-at", [&](const auto& value) { a.die_at = std::stoull(value); }},
      {"--die-in", [&](const auto& value) { a.die_in = known_place(value); }},
      {"--on-quorum-loss", [&](const auto& value) { a.on_quorum_loss = policy(value); }},
      {"--quorum-patience-s",
       [&](const auto& value) { a.quorum_patience = seconds(std::stol(value)); }},
      {"--role", [&](const auto& value) { a.as_witness = is_witness(value); }},
      {"--admission-secret", [&](const auto& value) { a.admission_secret = value; }},
      {"--token", [&](const auto& value) { a.token = value; }},
      {"--issue-token-s", [&](const auto& value) { a.issue = seconds(std::stol(value)); }},
      {"--suspect-after-s",
       [&](const auto& value) { a.suspect_after = seconds(std::stol(value)); }}};
  for (int i = 1; i < count; i += 2) {
    const auto found = options.find(words[i]);
    if (found == options.end() || i + 1 == count)
      throw Error(ErrorKind::kUsage, "elastic", fmt::format("{}: unknown, or no value", words[i]));
    found->second(words[i + 1]);
  }
  return a;
}

elastic::LetterCarrier::Options network(const Arguments& arguments) {
  elastic::LetterCarrier::Options options;
  options.key = arguments.key;
  options.host = arguments.listen;
  options.membership.suspect_after = arguments.suspect_after;
  options.membership.on_quorum_loss = arguments.on_quorum_loss;
  options.membership.quorum_patience = arguments.quorum_patience;
  options.as_witness = arguments.as_witness;
  options.token = arguments.token;
  if (!arguments.admission_secret.empty())
    options.admission = wire::token_key(arguments.admission_secret);
  return options;
}

// At this address the others find the process.
void write_address(const std::string& file, const elastic::LetterCarrier& carrier) {
  if (file.empty()) return;
  const std::string incomplete = file + ".new";
  std::ofstream(incomplete) << carrier.endpoint().text() << "\n" << carrier.self().text() << "\n";
  std::rename(incomplete.c_str(), file.c_str());
}

// A witness trains nothing. It remembers what is decided, so that of two members either may die.
int be_witness(const Arguments& arguments) {
  const auto carrier = elastic::LetterCarrier::join(network(arguments), arguments.contacts);
  write_address(arguments.address_file, *carrier);
  bool leaves = false;
  for (;;) {
    // What it is told does not concern it.
    while (carrier->take_news(Deadline::in(milliseconds(100)))) {
    }
    const elastic::MemberStatus status = carrier->status();
    if (status.left) return 0;
    if (status.ended) throw Error(*status.ended);
    if (asked_to_leave != 0 && !std::exchange(leaves, true))
      carrier->post(membership::LeaveAsked{});
  }
}

class Trainer {
 public:
  explicit Trainer(const Arguments& arguments)
      : arguments_(arguments), lineage_(arguments.lineage, std::ios::app) {
    ElasticGroup::Options options;
    options.network = network(arguments);
    options.state.write = [this] { return tiny::bytes_of(state_); };
    options.state.read = [this](std::span<const std::byte> bytes) {
      if (bytes.size() == sizeof state_) std::memcpy(&state_, bytes.data(), sizeof state_);
    };
    options.on_fault = [](const Error& error) { std::fprintf(stderr, "%s\n", error.what()); };
    options.at = [this](elastic::Moment moment) {
      if (!group_) return;
      die_in(moment == elastic::Moment::kNewView ? "view" : "report", group_->next_step());
    };
    // Joining takes the state from a member that has it, behind the step that the others are at.
    // They wait for that long.
    group_ = arguments.contacts.empty()
                 ? ElasticGroup::found(std::move(options))
                 : ElasticGroup::join(std::move(options), arguments.contacts);
    std::fprintf(stderr, "member %s listens at %s, and begins with step %llu\n",
                 group_->self().text().c_str(), group_->endpoint().text().c_str(),
                 static_cast<unsigned long long>(group_->next_step()));
    write_address(arguments.address_file, group_->carrier());
    group_->wait_for_members(arguments.members, Deadline::in(std::chrono::minutes(30)));
  }

  void train() {
    while (group_->next_step() < arguments_.steps && asked_to_leave == 0) {
      const elastic::StepResult result = group_->step(
          group_->next_step(),
          [this](const std::shared_ptr<Communicator>& group, const elastic::Roster& roster) {
            return attempt(*group, roster);
          },
          [this] { state_ = next_; });
      record(result);
    }
    // The others go on at once, without finding out from silence.
    const bool left = group_->leave();
    std::printf("%s at step %llu with state %s\n", left ? "left" : "gone",
                static_cast<unsigned long long>(group_->next_step()),
                hex(digest_of(state_)).c_str());
  }

 private:
  static elastic::Digest digest_of(const tiny::State& state) {
    return elastic::StateAccess::sha256(tiny::bytes_of(state));
  }

  // One attempt. It changes nothing but scratch: `sums_` and `next_`.
  elastic::Attempt attempt(Communicator& group, const elastic::Roster& roster) {
    // G, zero gradients. Nothing is lost with a member that dies here, or joins: the step has not
    // begun. PCCL has this letter last; an attempt that is repeated needs it first.
    sums_ = {};

    // F, forward and backward, over this member's part of the step's samples. A member that dies
    // here leaves its part undone: the next attempt divides the step's samples among those that are
    // left, from the same first sample on.
    const auto rank = static_cast<std::uint64_t>(roster.rank);
    tiny::add_samples(state_, roster.samples + rank * kSamplesOfMember, kSamplesOfMember, sums_);
    std::this_thread::sleep_for(arguments_.pause);
    die_in("forward", roster.step);

    // R, reduce. A member that dies here leaves the others with one sum and without the other: the
    // second collective throws, nothing is decided, and all attempt the step again without it.
    add_up(group, sums_.loss_and_samples);
    die_in("reduce", roster.step);
    add_up(group, sums_.gradient);

    // O, optimize, into `next_`. A member that dies here has added its part, but has not said that
    // its attempt is done: the step is attempted again without it. Once all have said so, and most
    // keepers have noted it, the step is committed, and stays so whoever dies. Then, and only then,
    // `next_` becomes the state. A joiner that has asked meanwhile enters then.
    next_ = tiny::updated(state_, sums_);
    die_in("update", roster.step);
    return {.state = digest_of(next_), .samples = kSamplesOfMember};
  }

  /// For those who want to see what becomes of the others.
  void die_in(const std::string& place, std::uint64_t step) const {
    if (!arguments_.die_at || arguments_.die_in != place) return;
    const bool there = place == "view" ? step >= *arguments_.die_at : step == *arguments_.die_at;
    if (there) std::raise(SIGKILL);
  }

  static void add_up(Communicator& group, std::span<double> numbers) {
    group.wait(group.start(
        {.kind = Kind::kAllReduce,
         .type = ElementType::kF64,
         .buffer = {.input = numbers.data(), .output = numbers.data(), .count = numbers.size()}}));
  }

  // A line has all that a replay needs: whose samples were added up, and in which order.
  void record(const elastic::StepResult& result) {
    die_in("commit", result.step);
    if (arguments_.lineage.empty()) return;
    std::string members;
    std::string ranges;
    std::uint64_t first = result.first_sample;
    for (const auto& member : result.view.members) {
      const std::string comma = members.empty() ? "" : ",";
      members += comma + '"' + member.id.text() + '"';
      ranges += fmt::format("{}[{},{}]", comma, first, first + kSamplesOfMember);
      first += kSamplesOfMember;
    }
    lineage_
        << fmt::format(
               R"({{"step":{},"epoch":{},"keepers":{},"members":[{}],"samples":[{}],"state":"{}"}})",
               result.step, result.view.epoch, result.view.keepers.size(), members, ranges,
               hex(result.state))
        << std::endl;
  }

  const Arguments arguments_;
  std::ofstream lineage_;
  tiny::State state_;
  tiny::Sums sums_;
  tiny::State next_;
  std::unique_ptr<ElasticGroup> group_;
};

}  // namespace

int main(int count, char** words) {
  try {
    std::signal(SIGTERM, ask_to_leave);
    std::signal(SIGINT, ask_to_leave);
    const Arguments arguments = parse(count, words);
    if (arguments.issue) {
      const auto expires = std::chrono::system_clock::now() + *arguments.issue;
      const std::string cluster = elastic::LetterCarrier::Options{}.cluster;
      std::puts(wire::issue_join_token(arguments.admission_secret, cluster, expires).c_str());
      return 0;
    }
    if (arguments.as_witness) return be_witness(arguments);
    Trainer(arguments).train();
    return 0;
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return exit_code(error.kind());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
