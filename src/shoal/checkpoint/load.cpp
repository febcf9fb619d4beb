#include <ATen/ops/empty_like.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "shoal/base/check.h"
#include "shoal/checkpoint/agreement.h"
#include "shoal/checkpoint/checkpoint.h"
#include "shoal/checkpoint/format/reader.h"
#include "shoal/checkpoint/host_reading.h"
#include "shoal/checkpoint/state_item.h"

namespace shoal::checkpoint {
namespace {

using Names = std::vector<std::string>;

std::string some_of(const Names& names) {
  constexpr std::size_t kShown = 8;
  const Names shown(names.begin(), names.begin() + std::min(kShown, names.size()));
  return fmt::format(
      "{}{}", fmt::join(shown, ", "),
      names.size() > kShown ? fmt::format(" and {} more", names.size() - kShown) : "");
}

/// The names that any rank asks for: with pipeline stages each holds only some.
std::set<std::string> names_of_all_ranks(const std::vector<StateItem>& items,
                                         const comm::Group& group, Duration timeout) {
  const auto parts = agree(group, timeout, [&] {
    check_items(items);
    Names names;
    for (const StateItem& item : items) names.push_back(item.name);
    return nlohmann::json(names).dump();
  });
  std::set<std::string> all;
  for (const std::string& part : parts)
    all.merge(nlohmann::json::parse(part).get<std::set<std::string>>());
  return all;
}

bool is_value(ElementType type) {
  return type == ElementType::kF16 || type == ElementType::kBF16 || type == ElementType::kF32;
}

/// Weights and moments may be kept in another precision than they were saved in.
bool converts(ElementType saved, ElementType here) {
  return saved == here || (is_value(saved) && is_value(here));
}

/// Holds the state that the job has to the one that was saved.
void check_same_model(const format::Reader& reader, const std::vector<StateItem>& items,
                      const std::set<std::string>& wanted, const std::string& scope) {
  Names only_here;
  Names only_there;
  Names different;
  for (const std::string& name : wanted)
    if (!reader.manifest().find(name)) only_here.push_back(name);
  for (const auto& tensor : reader.manifest().tensors) {
    if (tensor.name.starts_with(scope) && !wanted.contains(tensor.name))
      only_there.push_back(tensor.name);
  }
  for (const StateItem& item : items) {
    if (const auto* tensor = reader.manifest().find(item.name)) {
      const ElementType type = comm::element_type(item.local.scalar_type());
      if (tensor->shape != item.global_shape || !converts(tensor->type, type)) {
        different.push_back(fmt::format("{} ({} {} here, {} {} there)", item.name, name(type),
                                        format::text(item.global_shape), name(tensor->type),
                                        format::text(tensor->shape)));
      }
    }
  }
  if (only_here.empty() && only_there.empty() && different.empty()) return;
  std::string message =
      fmt::format("'{}' holds another model or optimizer than the job describes", reader.path());
  if (!only_here.empty()) message += "; only in the job: " + some_of(only_here);
  if (!only_there.empty()) message += "; only in the checkpoint: " + some_of(only_there);
  if (!different.empty()) message += "; different: " + some_of(different);
  throw Error(ErrorKind::kConfig, "checkpoint", message)
      .hint("describe the model as it was saved, or begin a new run");
}

void read_item(format::Reader& reader, const StateItem& item) {
  const auto* tensor = reader.manifest().find(item.name);
  const auto saved = item.local.options().device(at::kCPU).dtype(comm::scalar_type(tensor->type));
  const bool direct =
      item.local.is_cpu() && item.local.scalar_type() == comm::scalar_type(tensor->type);
  const at::Tensor target = direct ? item.local : at::empty_like(item.local, saved);
  auto* data = static_cast<char*>(target.data_ptr());
  for (const format::Box& box : boxes_of(item)) {
    reader.read(*tensor, box, data);
    data += box.count() * static_cast<std::int64_t>(target.element_size());
  }
  if (!direct) item.local.copy_(target);
}

}  // namespace

Loaded load(const std::string& path, const std::vector<StateItem>& items, const comm::Group& group,
            const LoadOptions& options) {
  const std::set<std::string> wanted = names_of_all_ranks(items, group, options.timeout);
  const HostReading reading(items, group, options.timeout);
  Loaded loaded;
  // A rank that reads nothing itself compares its state with the checkpoint too.
  agree(group, options.timeout, [&] {
    format::Reader reader(path);
    check_same_model(reader, items, wanted, options.scope);
    for (std::size_t i = 0; i < items.size(); ++i)
      if (reading.reads(i)) read_item(reader, items[i]);
    loaded = {reader.manifest().step, reader.manifest().metadata, reader.bytes_read()};
    return std::string();
  });
  // Not before all have read: where a rank has failed, every rank has thrown by now and none waits
  // in a broadcast.
  reading.share(items);
  return loaded;
}

}  // namespace shoal::checkpoint
