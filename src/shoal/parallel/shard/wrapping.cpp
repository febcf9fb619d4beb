#include "shoal/parallel/shard/wrapping.h"

#include <algorithm>
#include <set>

#include "shoal/base/check.h"
#include "shoal/base/name_pattern.h"

namespace shoal::parallel {

namespace {

using Modules = std::set<const nn::Module*>;

void add_named(const nn::Module& module, const std::string& pattern, Modules& chosen) {
  for (const auto& [name, child] : module.children()) {
    if (fits_pattern(pattern, child->path())) chosen.insert(child.get());
    add_named(*child, pattern, chosen);
  }
}

/// Returns how many elements below `module` are in no unit.
std::int64_t add_large(const nn::Module& module, std::int64_t least, bool root,
                       std::set<const nn::Parameter*>& seen, Modules& chosen) {
  std::int64_t count = 0;
  for (const auto& [name, parameter] : module.own_parameters())
    if (seen.insert(parameter.get()).second) count += parameter->tensor().numel();
  for (const auto& [name, child] : module.children())
    count += add_large(*child, least, false, seen, chosen);
  // Children come first: what they have claimed does not count for their parent. The root is a unit
  // in any case.
  if (root || count < least) return count;
  chosen.insert(&module);
  return 0;
}

Modules choose(nn::Module& model, const Wrapping& wrapping) {
  Modules chosen{&model};
  switch (wrapping.by) {
    case Wrapping::By::kBlock:
      if (const auto* units = dynamic_cast<const nn::Model*>(&model)) {
        for (const auto& unit : units->units()) chosen.insert(unit.get());
      } else {
        for (const auto& [name, child] : model.children()) chosen.insert(child.get());
      }
      break;
    case Wrapping::By::kSize: {
      std::set<const nn::Parameter*> seen;
      add_large(model, wrapping.parameters, true, seen, chosen);
      break;
    }
    case Wrapping::By::kName:
      for (const std::string& name : wrapping.names) {
        const std::size_t before = chosen.size();
        Modules named;
        add_named(model, name, named);
        chosen.merge(named);
        if (named.empty() && chosen.size() == before && !wrapping.may_miss) {
          throw Error(ErrorKind::kConfig, "sharding",
                      fmt::format("no module of the model is called '{}'", name));
        }
      }
      break;
    case Wrapping::By::kWhole:
      break;
  }
  return chosen;
}

void collect(nn::Module& module, int around, const Modules& chosen,
             std::set<const nn::Parameter*>& taken, std::vector<WrappedModule>& list) {
  // Parents come before their children, in the order in which forward enters them.
  if (chosen.contains(&module)) {
    list.push_back({&module, around, {}, {}});
    around = static_cast<int>(list.size()) - 1;
  }
  for (const auto& [name, parameter] : module.own_parameters()) {
    WrappedModule& unit = list[static_cast<std::size_t>(around)];
    const auto known = [&](const auto& some) {
      return std::find(some.begin(), some.end(), parameter) != some.end();
    };
    // A tied weight belongs to the first unit that registers it; later ones borrow it.
    if (taken.insert(parameter.get()).second) {
      unit.parameters.push_back(parameter);
    } else if (!known(unit.parameters) && !known(unit.borrowed)) {
      unit.borrowed.push_back(parameter);
    }
  }
  for (const auto& [name, child] : module.children()) collect(*child, around, chosen, taken, list);
}

}  // namespace

std::vector<WrappedModule> wrap(nn::Module& model, const Wrapping& wrapping) {
  std::vector<WrappedModule> list;
  std::set<const nn::Parameter*> taken;
  collect(model, -1, choose(model, wrapping), taken, list);
  return list;
}

}  // namespace shoal::parallel
