#include "apps/shoal/machine/product_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "apps/shoal/machine/measured_by.h"

namespace shoal::apps {
namespace {

using forecast::ProductPass;
using forecast::ProductShape;

/// A shape with the seconds of its passes.
struct TimedShape {
  const ProductShape& shape;
  const std::vector<double>& seconds;  ///< by pass, in the order of ProductArguments::passes
  std::optional<double> planned_s;     ///< of all passes; nothing: no figure of it alone

  double measured_s() const {
    double all = 0;
    for (const double pass : seconds) all += pass;
    return all;
  }
  double flops() const { return shape.flops() * static_cast<double>(seconds.size()); }
};

/// Returns what the planner counts for all passes of a shape, as far as it has a figure for each.
std::optional<double> planned_s(const ProductTable& table, const ProductShape& shape,
                                ElementType type) {
  if (!table.planned.device.peak_flops.contains(type)) return std::nullopt;
  double all = 0;
  for (const ProductPass pass : table.measured.passes) {
    const auto one = forecast::planned_product_s(table.planned, shape, pass, type,
                                                 table.by_kernels.contains(type));
    if (!one) return std::nullopt;
    all += *one;
  }
  return all;
}

std::vector<TimedShape> timed_shapes(const ProductTable& table, ElementType type) {
  std::vector<TimedShape> list;
  const ProductArguments& measured = table.measured;
  for (std::size_t i = 0; i < measured.shapes.size(); ++i) {
    const ProductShape& shape = measured.shapes[i];
    list.push_back({shape, measured.seconds.at(type)[i], planned_s(table, shape, type)});
  }
  return list;
}

/// The sums over the products of a micro-batch.
struct Sums {
  double flops = 0;
  double measured_s = 0;
  double planned_s = 0;           ///< of those that the planner has a figure for
  double measured_planned_s = 0;  ///< part of `measured_s`: of these
};

Sums sums_of(const std::vector<TimedShape>& shapes) {
  Sums sums;
  for (const TimedShape& one : shapes) {
    const auto count = static_cast<double>(one.shape.count);
    sums.flops += count * one.flops();
    sums.measured_s += count * one.measured_s();
    if (!one.planned_s) continue;
    sums.planned_s += count * *one.planned_s;
    sums.measured_planned_s += count * one.measured_s();
  }
  return sums;
}

const char* name_of(ProductPass pass) {
  switch (pass) {
    case ProductPass::kForward:
      return "forward";
    case ProductPass::kInputGradient:
      return "input_gradient";
    case ProductPass::kWeightGradient:
      return "weight_gradient";
  }
  return "";
}

std::string table_of(const ProductTable& table, ElementType type) {
  const double peak = table.measured.peak_flops.at(type);
  const std::vector<TimedShape> shapes = timed_shapes(table, type);
  std::string text = fmt::format(
      "\n{}: a plain loop reaches {:.4g} GFLOP/s on a rank\n"
      "  {:<20} {:>7} {:>7} {:>7} {:>5}  {:>8} {:>8} {:>8} {:>7} {:>8}\n",
      name(type), peak / 1e9, "layers", "rows", "in", "out", "count", "forward", "d input",
      "d weight", "of peak", "planned");
  for (const TimedShape& one : shapes) {
    const ProductShape& shape = one.shape;
    text += fmt::format("  {:<20} {:>7} {:>7} {:>7} {:>5} ", shape.layers, shape.rows, shape.in,
                        shape.out, shape.count);
    for (const double seconds : one.seconds)
      text += fmt::format(" {:>8.4g}", shape.flops() / seconds / 1e9);
    text += fmt::format(" {:>5.0f} %", 100 * one.flops() / one.measured_s() / peak);
    text += one.planned_s ? fmt::format(" {:>8.4g}\n", one.flops() / *one.planned_s / 1e9)
                          : fmt::format(" {:>8}\n", "-");
  }
  const Sums sums = sums_of(shapes);
  text += fmt::format("  all of them: {:.4g} ms, {:.4g} GFLOP/s, {:.0f} % of the peak",
                      sums.measured_s * 1e3, sums.flops / sums.measured_s / 1e9,
                      100 * sums.flops / sums.measured_s / peak);
  if (sums.planned_s > 0) {
    const bool all = sums.measured_planned_s == sums.measured_s;
    text += fmt::format("; planned {:.4g} ms{}, {:.2f} times as long", sums.planned_s * 1e3,
                        all ? "" : fmt::format(" for {:.4g} ms", sums.measured_planned_s * 1e3),
                        sums.planned_s / sums.measured_planned_s);
  }
  return text + "\n";
}

nlohmann::ordered_json json_of(const TimedShape& one, const std::vector<ProductPass>& passes,
                               double peak) {
  const ProductShape& shape = one.shape;
  nlohmann::ordered_json json{{"layers", shape.layers}, {"rows", shape.rows},
                              {"in", shape.in},         {"out", shape.out},
                              {"count", shape.count},   {"flops", shape.flops()}};
  for (std::size_t i = 0; i < passes.size(); ++i)
    json[fmt::format("{}_s", name_of(passes[i]))] = one.seconds[i];
  json["share_of_peak"] = one.flops() / one.measured_s() / peak;
  if (one.planned_s) json["planned_s"] = *one.planned_s;
  return json;
}

}  // namespace

std::string products_text(const ProductTable& table) {
  std::string text = fmt::format("{}: matmuls of linear layers, GFLOP/s on {}\n", table.title,
                                 describe(table.measured.by));
  for (const ElementType type : table.measured.types) text += table_of(table, type);
  std::string kernels;
  for (const ElementType type : table.by_kernels)
    kernels += fmt::format("{}{}", kernels.empty() ? "" : " and ", name(type));
  text += fmt::format("planned: what `shoal plan` counts by {}, from the figures of its device\n",
                      table.planned_by);
  if (kernels.empty()) return text;
  return text + fmt::format(
                    "  for {} from its kernels; -: a part of the kernel of the loss, of experts "
                    "or of routing\n",
                    kernels);
}

std::string products_json(const ProductTable& table) {
  const ProductArguments& measured = table.measured;
  nlohmann::ordered_json types = nlohmann::ordered_json::array();
  for (const ElementType type : measured.types) {
    const double peak = measured.peak_flops.at(type);
    const std::vector<TimedShape> shapes = timed_shapes(table, type);
    nlohmann::ordered_json products = nlohmann::ordered_json::array();
    for (const TimedShape& one : shapes) products.push_back(json_of(one, measured.passes, peak));
    const Sums sums = sums_of(shapes);
    nlohmann::ordered_json json{{"type", name(type)},
                                {"peak_flops", peak},
                                {"products", std::move(products)},
                                {"flops", sums.flops},
                                {"seconds", sums.measured_s}};
    if (sums.planned_s > 0) {
      json["planned_s"] = sums.planned_s;
      json["planned_of_seconds"] = sums.measured_planned_s;
    }
    types.push_back(std::move(json));
  }
  return nlohmann::ordered_json{{"title", table.title},
                                {"ranks", measured.by.ranks},
                                {"threads", measured.by.threads},
                                {"planned_by", table.planned_by},
                                {"others_cores", table.others_cores},
                                {"types", std::move(types)}}
             .dump() +
         "\n";
}

std::map<ElementType, std::vector<forecast::TimedWork>> timed_products(
    const ProductArguments& measured) {
  std::map<ElementType, std::vector<forecast::TimedWork>> all;
  for (const auto& [type, shapes] : measured.seconds) {
    for (std::size_t i = 0; i < shapes.size(); ++i)
      all[type].push_back({measured.shapes[i].flops(), shapes[i].front()});
  }
  return all;
}

}  // namespace shoal::apps
