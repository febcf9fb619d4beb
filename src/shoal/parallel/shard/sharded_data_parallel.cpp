#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "shoal/base/check.h"
#include "shoal/base/memory_category.h"
#include "shoal/parallel/ownership.h"
#include "shoal/parallel/shard/joined_sharding.h"
#include "shoal/parallel/shard/sharding.h"
#include "shoal/parallel/shard/unit_gradients.h"
#include "shoal/parallel/shard/unit_memory.h"

namespace shoal::parallel {
namespace {

using schedule::ShardAction;
using schedule::ShardStep;
using Copies = ShardingOptions::Copies;

bool among(const Parameters& some, const std::shared_ptr<nn::Parameter>& parameter) {
  return std::find(some.begin(), some.end(), parameter) != some.end();
}

// Gathers have a group of their own: they and reductions may be issued in another order on each
// rank.
class ShardedDataParallel final : public Sharding {
 public:
  ShardedDataParallel(nn::Module& model, const HeldParameters& held, const mesh::Mesh& mesh,
                      const ShardingOptions& options)
      : options_(options),
        modules_(wrap(model, options.wrapping)),
        holders_(held.holders),
        shard_(holders_.shard),
        gathers_(shard_.split(0, shard_.rank())) {
    SHOAL_USER_CHECK(!options.reduce_every_micro_batch || options.stage != ShardStage::kOptimizer,
                     "sharding", "stage 1 keeps whole gradients: they are reduced once a step");
    SHOAL_USER_CHECK(options.in_flight >= 1, "sharding", "{} units in flight: at least 1",
                     options.in_flight);
    SHOAL_USER_CHECK(options.transfer_type == at::kFloat || options.transfer_type == at::kBFloat16,
                     "sharding", "parameters travel in {}: float32 or bf16",
                     c10::toString(options.transfer_type));
    keep_only(held.parameters);
    make_units();
    take_memory();
    list_owned(held.parameters);
    std::vector<const FlatUnit*> units;
    for (const auto& unit : memory_) units.push_back(&unit->unit());
    const bool whole = options.stage == ShardStage::kOptimizer;
    // Gathers in the backward pass keep ranks together, so no limit is needed there. A limit could
    // even deadlock: a rank that waits for a gather makes no progress on reductions.
    const int in_flight = whole || !resident() ? 0 : options.in_flight;
    gradients_ = std::make_unique<UnitGradients>(
        std::move(units), mesh.along(holders_.axes), shard_, holders_.copies,
        UnitGradients::Options{
            .keep_whole = whole, .in_place = whole && one_copy_, .in_flight = in_flight});
    uses_.resize(memory_.size());
    if (!resident() && !by_caller()) hang_hooks();
    watch_updates();
  }

  void end_backward() override { rest_of_table(); }

  void begin(std::int64_t index, std::int64_t count) override {
    rest_of_table();
    if (index > 0 && options_.reduce_every_micro_batch) gradients_->complete();
    if (index == 0) gradients_->clear();
    gradients_->set_sending(options_.reduce_every_micro_batch || index + 1 == count);
    trained_ = true;
    passing_ = true;
  }

  // Gathers come first: a peer that uses more units than this rank waits for their gathers before
  // it starts its reductions, and would wait for ever if this rank reduced first.
  void finish() override {
    rest_of_table();
    gradients_->complete();
    gradients_->set_sending(false);
  }

  const std::vector<OwnedRange>& owned() const override { return owned_; }

  std::vector<at::Tensor> gradients() const override {
    std::vector<at::Tensor> all;
    for (const OwnedRange& range : owned_)
      if (range.parameter->requires_grad()) all.push_back(gradients_->sum(*range.parameter));
    return all;
  }

  void begin_update() override {
    if (buffer_) buffer_->end_reading();
  }

  void end_update() override {
    gradients_->clear();
    ++updates_;
    if (resident() && !one_copy_) exchange();
    if (buffer_) buffer_->publish();
  }

  void reset_parameters(Key key) override {
    // Ranks that share memory divide the parameters among them; each writes only its own.
    int writers = 1;
    int writer = 0;
    if (one_copy_) {
      writers = shard_.size();
      writer = shard_.rank();
    } else if (slots_) {
      writers = slots_->ranks();
      writer = slots_->rank();
    }
    int turn = 0;
    for (const auto& unit : memory_) {
      // Whole parameters are drawn and the rank's own part is kept, so the values do not depend on
      // the sharding.
      unit->take();
      for (const FlatUnit::Member& member : unit->unit().members)
        if (turn++ % writers == writer) member.parameter->reset(key);
      unit->keep_own();
      unit->release();
    }
    if (resident() && !one_copy_ && options_.transfer_type != at::kFloat) exchange();
    if (buffer_) buffer_->publish();
  }

  void unshard() override {
    rest_of_table();
    held_ = true;
    if (slots_) slots_->keep_new(false);
    for (std::size_t u = 0; u < memory_.size(); ++u) {
      // Two gathers are in flight at a time: one unit is sent while the one before it arrives.
      memory_[u]->gather();
      if (u > 0) memory_[u - 1]->wait();
    }
    if (!memory_.empty()) memory_.back()->wait();
  }

  void reshard() override {
    held_ = false;
    for (const auto& unit : memory_) unit->release();
    if (slots_) slots_->keep_new(true);
  }

  bool gathers() const override { return !resident(); }

  void begin_inference() override {
    rest_of_table();
    inference_ = true;
  }

  void end_inference() override {
    rest_of_table();
    inference_ = false;
  }

  void gather(const Parameters& parameters) override {
    for (const std::size_t u : units_of(parameters))
      if (uses_[u]++ == 0) memory_[u]->gather();
  }

  void wait_for(const Parameters& parameters) override {
    for (const std::size_t u : units_of(parameters)) memory_[u]->wait();
  }

  void release(const Parameters& parameters) override {
    for (const std::size_t u : units_of(parameters)) {
      SHOAL_USER_CHECK(uses_[u] > 0, "sharding", "{} is released more often than gathered",
                       memory_[u]->unit().name);
      if (--uses_[u] == 0 && !held_) memory_[u]->release();
    }
  }

  const std::vector<ShardAction>& table() const override { return table_; }

 private:
  /// Sends what owners have written to all ranks. Frozen parameters change only before training
  /// begins, unless a rule adjusts them, so afterwards they are left out.
  void exchange() {
    UnitMemory* before = nullptr;
    for (const auto& unit : memory_) {
      if (!unit->unit().trained && !unit->unit().adjusted && trained_) continue;
      unit->exchange();
      if (before) before->wait();
      before = unit.get();
    }
    if (before) before->wait();
  }

  bool resident() const { return buffer_ || options_.stage != ShardStage::kParameters; }
  bool by_caller() const { return options_.gathers == ShardingOptions::Gathers::kByCaller; }

  /// The units in which parameters lie, in the order in which every rank has them.
  std::vector<std::size_t> units_of(const Parameters& parameters) const {
    std::vector<std::size_t> units;
    for (std::size_t u = 0; u < memory_.size(); ++u) {
      const auto& members = memory_[u]->unit().members;
      const bool read = std::any_of(members.begin(), members.end(), [&](const auto& member) {
        return among(parameters, member.parameter);
      });
      if (read) units.push_back(u);
    }
    return units;
  }

  /// Leaves the parameters of other holders to other shardings. Modules stay: they are entered.
  void keep_only(const Parameters& mine) {
    const auto foreign = [&](const auto& parameter) { return !among(mine, parameter); };
    for (WrappedModule& module : modules_) {
      std::erase_if(module.parameters, foreign);
      std::erase_if(module.borrowed, foreign);
    }
  }

  void make_units() {
    for (const WrappedModule& wrapped : modules_) {
      for (const auto& parameter : wrapped.parameters) {
        SHOAL_USER_CHECK(!parameter->materialized(), "sharding", "{} has memory already",
                         parameter->name());
      }
      Parameters together = wrapped.parameters;
      std::erase_if(together, [&](const auto& one) { return among(options_.alone, one); });
      add_units(wrapped, together);
      for (const auto& parameter : wrapped.parameters)
        if (among(options_.alone, parameter)) add_units(wrapped, {parameter});
    }
    for (const FlatUnit& unit : units_) {
      for (const FlatUnit::Member& member : unit.members) {
        mesh::Layout layout = member.parameter->layout();
        layout.set_flat(holders_.cut);
        member.parameter->set_layout(std::move(layout), member.parameter->box());
      }
    }
  }

  void add_units(const WrappedModule& wrapped, const Parameters& parameters) {
    for (FlatUnit& unit : flat_units(wrapped.module->path(), parameters, shard_.size()))
      units_.push_back(std::move(unit));
  }

  void take_memory() {
    std::size_t bytes = 0;
    for (const FlatUnit& unit : units_)
      bytes += static_cast<std::size_t>(unit.size()) * c10::elementSize(unit.type);
    const bool on_host = units_.empty() || units_.front().device.is_cpu();
    if (options_.copies != Copies::kCopied && bytes > 0 && on_host) {
      const ScopedCategory category(MemoryCategory::kParameters);
      buffer_ = shard_.shared_buffer(bytes);
      one_copy_ = buffer_ != nullptr;
      if (!one_copy_) share_on_hosts(bytes);
    }
    SHOAL_USER_CHECK(buffer_ || slots_ || options_.copies != Copies::kShared || bytes == 0,
                     "sharding", "the ranks share no memory{}",
                     on_host ? "" : ": parameters lie on a device");
    std::size_t offset = 0;
    for (const FlatUnit& unit : units_) {
      UnitMemory::Options memory{.shared = {},
                                 .slots = slots_,
                                 .resident = resident(),
                                 .transfer_type = one_copy_ ? unit.type : options_.transfer_type};
      if (buffer_) memory.shared = buffer_->tensor(offset, {unit.size()}, unit.type);
      // Ranks compare the label (over MPI nothing is compared), so a gather of two different units
      // is an error and not a mixture.
      memory.label = static_cast<std::uint32_t>(memory_.size()) + 1;
      offset += static_cast<std::size_t>(unit.size()) * c10::elementSize(unit.type);
      memory_.push_back(std::make_unique<UnitMemory>(unit, gathers_, std::move(memory)));
    }
  }

  /// Keeps one copy a host, if every host holds the same number of consecutive ranks, more than
  /// one, and they share memory.
  void share_on_hosts(std::size_t bytes) {
    const comm::Group host = shard_.on_host();
    const int ranks = host.size();
    const bool block = ranks > 1 && ranks < shard_.size() && shard_.rank() % ranks == host.rank();
    const auto probe = host.shared_buffer(64);
    // Every rank gives its number of ranks on the host twice, once negated: the minimum then holds
    // the least and the most, and a rank that cannot share gives 0.
    const at::Tensor least = at::empty({2}, at::kLong);
    least.data_ptr<std::int64_t>()[0] = block && probe ? ranks : 0;
    least.data_ptr<std::int64_t>()[1] = -ranks;
    shard_.all_reduce(least, {.reduction = comm::Reduction::kMin});
    const auto* agreed = least.const_data_ptr<std::int64_t>();
    if (agreed[0] != ranks || agreed[1] != -ranks) return;
    slots_ = std::make_shared<HostSlots>(host);
    if (options_.stage != ShardStage::kParameters) buffer_ = host.shared_buffer(bytes);
  }

  void list_owned(const Parameters& mine) {
    for (const auto& parameter : mine) {
      for (const auto& memory : memory_) {
        const FlatUnit& unit = memory->unit();
        for (const FlatUnit::Member& member : unit.members) {
          if (member.parameter != parameter) continue;
          const auto [begin, end] = unit.range(member, shard_.rank());
          owned_.push_back({parameter, begin, end,
                            memory->own().narrow(0, unit.place(member, shard_.rank()), end - begin),
                            holders_.copies.rank(), holders_.copies.size()});
        }
      }
    }
  }

  /// The units that a module reads: those of its own parameters and of the borrowed ones.
  std::vector<int> read_by(const WrappedModule& module) const {
    Parameters read = module.parameters;
    read.insert(read.end(), module.borrowed.begin(), module.borrowed.end());
    const std::vector<std::size_t> units = units_of(read);
    return {units.begin(), units.end()};
  }

  void hang_hooks() {
    schedule::ShardPlan plan{.reads = {},
                             .parent = {},
                             .ahead = options_.ahead,
                             .reshard_after_forward = options_.reshard_after_forward};
    for (const WrappedModule& module : modules_) {
      plan.reads.push_back(read_by(module));
      plan.parent.push_back(module.parent);
    }
    plan.first_trained = first_trained();
    table_ = schedule::shard_table(plan);
    inference_table_ = schedule::forward_shard_table(plan);
    reads_ = plan.reads;
    for (std::size_t m = 0; m < modules_.size(); ++m) {
      const auto enter_if_alive = [this, m, alive = std::weak_ptr(alive_)](
                                      ShardStep step, bool recomputing = false) {
        if (!alive.expired()) enter(step, static_cast<int>(m), recomputing);
      };
      modules_[m].module->on_pre_forward(
          [enter_if_alive](nn::Module&, const at::Tensor&, const nn::Context& context) {
            enter_if_alive(ShardStep::kForward, context.recomputing);
            return at::Tensor();
          });
      modules_[m].module->on_post_forward(
          [enter_if_alive](nn::Module&, const at::Tensor& output, const nn::Context&) {
            if (output.requires_grad()) {
              // The gradient of the output arrives just before the module's own backward pass needs
              // the parameters.
              output.register_hook(
                  [enter_if_alive](const at::Tensor&) { enter_if_alive(ShardStep::kBackward); });
            }
            return at::Tensor();
          });
    }
    modules_.front().module->on_post_forward(
        [this, alive = std::weak_ptr(alive_)](nn::Module&, const at::Tensor&, const nn::Context&) {
          if (!alive.expired() && inference_) rest_of_table();
          return at::Tensor();
        });
  }

  /// Autograd does not see what owners write to parameters. These hooks refuse a backward pass that
  /// would read other values than its forward pass did.
  void watch_updates() {
    for (const WrappedModule& wrapped : modules_) {
      wrapped.module->on_post_forward(
          [this, alive = std::weak_ptr(alive_)](nn::Module& module, const at::Tensor& output,
                                                const nn::Context&) {
            if (!alive.expired() && output.requires_grad()) {
              output.register_hook(
                  [this, alive, then = updates_, path = module.path()](const at::Tensor&) {
                    SHOAL_USER_CHECK(alive.expired() || then == updates_, "sharding",
                                     "the parameters of {} were updated between its forward and "
                                     "its backward pass: gradients would fit neither",
                                     path.empty() ? "the model" : path);
                  });
            }
            return at::Tensor();
          });
    }
  }

  /// A module is about to run: carries out the table up to its entry. A module that comes out of
  /// turn (recomputed, or run twice) gets only the units that it reads.
  void enter(ShardStep step, int module, bool recomputing) {
    if (held_) return;
    // The model is around all others: an inference pass begins and ends with it.
    if (inference_ && module == 0) {
      rest_of_table();
      passing_ = true;
    }
    in_backward_ = in_backward_ || recomputing || step == ShardStep::kBackward;
    if (!in_backward_ || step == ShardStep::kBackward) {
      const auto& table = pass_table();
      const auto found = std::find(table.begin() + cursor_, table.end(), ShardAction{step, module});
      if (found != table.end()) do_until(found - table.begin() + 1);
    }
    for (int m = module; m >= 0; m = modules_[static_cast<std::size_t>(m)].parent) {
      for (const int unit : reads_[static_cast<std::size_t>(m)]) {
        memory_[static_cast<std::size_t>(unit)]->gather();
        memory_[static_cast<std::size_t>(unit)]->wait();
      }
    }
  }

  const std::vector<ShardAction>& pass_table() const {
    return inference_ ? inference_table_ : table_;
  }

  void do_until(std::ptrdiff_t end) {
    for (; cursor_ < end; ++cursor_) {
      const ShardAction& action = pass_table()[static_cast<std::size_t>(cursor_)];
      if (action.step == ShardStep::kGather)
        memory_[static_cast<std::size_t>(action.index)]->gather();
      if (action.step == ShardStep::kRelease)
        memory_[static_cast<std::size_t>(action.index)]->release();
    }
  }

  /// Returns the index of the first module that reads a trained parameter: backward enters no
  /// module before it. Returns their number when nothing is trained.
  int first_trained() const {
    const auto trained = [](const auto& parameters) {
      return std::any_of(parameters.begin(), parameters.end(),
                         [](const auto& parameter) { return parameter->requires_grad(); });
    };
    const auto found = std::find_if(modules_.begin(), modules_.end(), [&](const WrappedModule& m) {
      return trained(m.parameters) || trained(m.borrowed);
    });
    return static_cast<int>(found - modules_.begin());
  }

  /// Ends a pass. Carries out the rest of the table, because ranks that ran more modules need this
  /// rank in their gathers; then releases everything and starts again at the top.
  void rest_of_table() {
    if (resident() || by_caller() || held_) return;
    if (passing_) do_until(static_cast<std::ptrdiff_t>(pass_table().size()));
    for (const auto& unit : memory_) unit->release();
    cursor_ = 0;
    in_backward_ = false;
    passing_ = false;
  }

  std::shared_ptr<int> alive_ = std::make_shared<int>();  ///< hooks outlive this
  ShardingOptions options_;
  std::vector<WrappedModule> modules_;
  Holders holders_;
  comm::Group shard_;
  comm::Group gathers_;
  std::vector<FlatUnit> units_;
  /// All parameters in shared memory; null: they are gathered, or every rank has its own copy.
  std::shared_ptr<comm::SharedBuffer> buffer_;
  /// Memory that the ranks of this host share, in a group on several hosts; null: no memory is
  /// shared, or all ranks share it.
  std::shared_ptr<HostSlots> slots_;
  bool one_copy_ = false;  ///< `buffer_` is shared by all ranks of the group
  std::vector<std::unique_ptr<UnitMemory>> memory_;
  std::vector<OwnedRange> owned_;
  std::unique_ptr<UnitGradients> gradients_;
  std::vector<ShardAction> table_;
  std::vector<ShardAction> inference_table_;
  std::vector<std::vector<int>> reads_;  ///< by module: units
  std::vector<int> uses_;                ///< by unit: gathers by the caller that are not released
  std::ptrdiff_t cursor_ = 0;
  std::uint64_t updates_ = 0;  ///< the epoch of the parameters
  bool passing_ = false;       ///< a micro-batch has begun whose table is not done
  bool in_backward_ = false;
  bool held_ = false;       ///< between `unshard` and `reshard`
  bool inference_ = false;  ///< between `begin_inference` and `end_inference`
  bool trained_ = false;    ///< a training step has begun
};

}  // namespace

std::unique_ptr<Sharding> sharded_data_parallel(nn::Module& model, const mesh::Mesh& mesh,
                                                const ShardingOptions& options) {
  std::vector<HeldParameters> sets = by_holders(model.parameters(), mesh);
  if (sets.empty()) sets.push_back({common_holders({}, mesh), {}});
  if (sets.size() == 1)
    return std::make_unique<ShardedDataParallel>(model, sets.front(), mesh, options);
  std::vector<std::unique_ptr<Sharding>> parts;
  for (HeldParameters& set : sets) {
    // Other sets and the tensor-parallel modules may use groups of the same ranks. When they call
    // is a matter of which reduction ends first, so each set has its own.
    set.holders.shard = set.holders.shard.split(0, set.holders.shard.rank());
    set.holders.copies = set.holders.copies.split(0, set.holders.copies.rank());
    parts.push_back(std::make_unique<ShardedDataParallel>(model, set, mesh, options));
  }
  return std::make_unique<JoinedSharding>(model, std::move(parts));
}

}  // namespace shoal::parallel
