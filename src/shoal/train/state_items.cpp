#include "shoal/train/state_items.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <charconv>

#include "shoal/base/error.h"
#include "shoal/parallel/box_view.h"

namespace shoal::train {

checkpoint::StateItem item_of(const std::string& prefix, const parallel::OwnedRange& range,
                              const at::Tensor& values) {
  const nn::Parameter& parameter = *range.parameter;
  checkpoint::StateItem item{.name = prefix + parameter.name(),
                             .local = values,
                             .global_shape = parameter.global_shape(),
                             .boxes = {},
                             .replica = range.owner(),
                             .replicas = range.owners(),
                             .holders = range.ties > 1 ? kTied : kUntied};
  // No boxes stand for the whole tensor, so a part of it needs them, also where this rank owns all
  // of its own box. A flat range is saved as the few boxes that it consists of, so that any other
  // cut can be loaded.
  if (range.end - range.begin < parameter.global_count())
    item.boxes = boxes_in(range, 0, range.end - range.begin);
  return item;
}

std::vector<mesh::Box> boxes_in(const parallel::OwnedRange& range, std::int64_t begin,
                                std::int64_t end) {
  return mesh::boxes_of(range.parameter->box(), range.begin + begin, range.begin + end);
}

std::string name_of_box(const std::string& prefix, const std::string& parameter,
                        const std::vector<std::int64_t>& begin) {
  return fmt::format("{}{}@{}", prefix, parameter, fmt::join(begin, ","));
}

NamedBox parse_named_box(const std::string& name, const std::string& path) {
  const std::size_t at = name.rfind('@');
  NamedBox box{name.substr(0, at), {}};
  const char* place = at == std::string::npos ? nullptr : name.data() + at + 1;
  const char* const end = name.data() + name.size();
  while (place && place != end) {
    const auto [next, error] = std::from_chars(place, end, box.begin.emplace_back());
    const bool more = next != end;
    place = error == std::errc() && (!more || *next == ',') ? next + (more ? 1 : 0) : nullptr;
  }
  if (place) return box;
  throw Error(
      ErrorKind::kData, "checkpoint",
      fmt::format("{}: the tensor {} does not say which box of a parameter it is", path, name));
}

void check_box(const NamedBox& box, const std::vector<std::int64_t>& shape,
               const std::vector<std::int64_t>& parameter, const std::string& path) {
  bool fits = box.begin.size() == parameter.size() && shape.size() == parameter.size();
  for (std::size_t d = 0; fits && d < shape.size(); ++d) {
    fits = box.begin[d] >= 0 && box.begin[d] <= parameter[d] && shape[d] >= 0 &&
           shape[d] <= parameter[d] - box.begin[d];
  }
  if (fits) return;
  throw Error(
      ErrorKind::kData, "checkpoint",
      fmt::format("{}: a box of {} that begins at [{}] and has the shape [{}] is no part of "
                  "the parameter, whose shape is [{}]",
                  path, box.parameter, fmt::join(box.begin, ", "), fmt::join(shape, ", "),
                  fmt::join(parameter, ", ")));
}

std::vector<checkpoint::StateItem> boxes_to_save(const std::string& prefix,
                                                 const parallel::OwnedRange& range,
                                                 std::int64_t begin, const at::Tensor& values) {
  std::vector<checkpoint::StateItem> items;
  std::int64_t done = 0;
  for (const mesh::Box& box : boxes_in(range, begin, begin + values.numel())) {
    checkpoint::StateItem item = item_of(prefix, range, values.narrow(0, done, box.count()));
    item.name = name_of_box(prefix, range.parameter->name(), box.begin);
    item.boxes.clear();
    item.global_shape = parallel::shape_of(box);
    items.push_back(std::move(item));
    done += box.count();
  }
  return items;
}

}  // namespace shoal::train
