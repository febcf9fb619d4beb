#include "apps/shoal/cluster_file.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <toml++/toml.h>

#include <algorithm>
#include <map>

#include "apps/shoal/cluster_keys.h"
#include "shoal/base/error.h"
#include "shoal/base/file.h"
#include "shoal/train/config/link_costs.h"
#include "shoal/train/config/toml_text.h"

namespace shoal::apps {
namespace {

using plan::Cluster;

[[noreturn]] void reject(const std::string& file, const toml::node& at, const std::string& what) {
  throw Error(ErrorKind::kConfig, "cluster",
              fmt::format("{}:{}: {}", file, at.source().begin.line, what));
}

/// "kernels.linear.flop_s" and its like: the place of the number; null for another key.
double* kernel_number(Cluster& cluster, const std::string& key) {
  constexpr std::string_view kPrefix = "kernels.";
  const std::size_t dot = key.rfind('.');
  if (!key.starts_with(kPrefix) || dot < kPrefix.size()) return nullptr;
  const std::string kernel = key.substr(kPrefix.size(), dot - kPrefix.size());
  const std::string part = key.substr(dot + 1);
  const auto& known = plan::kernel_names();
  if (std::find(known.begin(), known.end(), kernel) == known.end()) return nullptr;
  plan::KernelRate& rate = cluster.kernels[kernel];
  if (part == "start_s") return &rate.start_s;
  if (part == "flop_s") return &rate.flop_s;
  if (part == "weight_s") return &rate.weight_s;
  return part == "byte_s" ? &rate.byte_s : nullptr;
}

/// "kernels.linear.timed": rows of FLOPs, bytes of weights, bytes, seconds; false for another key.
bool read_timed(Cluster& cluster, const std::string& key, const toml::node& node,
                const std::string& file) {
  for (const std::string& kernel : plan::kernel_names()) {
    if (key != "kernels." + kernel + ".timed") continue;
    const toml::array* rows = node.as_array();
    if (!rows) reject(file, node, fmt::format("{}: must be a list of rows", key));
    for (const toml::node& row : *rows) {
      const toml::array* cells = row.as_array();
      if (!cells || cells->size() != 4 ||
          !std::all_of(cells->begin(), cells->end(),
                       [](const toml::node& cell) { return cell.is_number(); })) {
        reject(file, row,
               fmt::format("{}: a row has four numbers: FLOPs, bytes of weights, bytes, seconds",
                           key));
      }
      const auto cell = [&](std::size_t i) { return *cells->get(i)->value<double>(); };
      cluster.kernels[kernel].timed.push_back({{cell(0), cell(1), cell(2)}, cell(3)});
    }
    return true;
  }
  return false;
}

bool is_section(const std::string& key) {
  const auto& kernels = plan::kernel_names();
  return key == "device" || key == "device.peak_flops" || key == "device.efficiency" ||
         key == "inside" || key == "between" || key == "host" || key == "storage" ||
         key == "kernels" ||
         std::any_of(kernels.begin(), kernels.end(),
                     [&](const std::string& name) { return key == "kernels." + name; });
}

void read(const toml::table& table, const std::string& prefix, const std::string& file,
          Cluster& cluster) {
  const auto known = cluster_numbers(cluster);
  const std::map<std::string, std::int64_t*> counts{
      {"hosts", &cluster.hosts}, {"devices_per_host", &cluster.devices_per_host}};
  const std::map<std::string, std::string*> texts{
      {"name", &cluster.name}, {"source", &cluster.source}, {"device.name", &cluster.device.name}};
  // Every key is either known, with the right type, or an error with its line: a misspelt key would
  // leave a default in a plan.
  for (const auto& [name, node] : table) {
    const std::string key = prefix + std::string(name.str());
    if (key == "preset" || key == "tcp")
      continue;  // what messages over TCP cost is no part of a Cluster
    if (key == "runtime") {
      const auto known =
          node.is_string() ? plan::runtime(*node.value<std::string>()) : std::nullopt;
      if (!known) reject(file, node, "runtime: must be \"published\" or \"shoal\"");
      cluster.runtime = *known;
      continue;
    }
    // Keys of this section are the names of element types.
    if (prefix == "device.peak_flops.") {
      const auto type = element_type(name.str());
      const auto value = node.value<double>();
      if (!type) {
        reject(file, node,
               fmt::format("{}: no such element type (f32, bf16, f16, f8_e4m3 ...)", key));
      }
      if (!value || !node.is_number()) reject(file, node, fmt::format("{}: must be a number", key));
      cluster.device.peak_flops[*type] = *value;
    } else if (const auto number =
                   std::find_if(known.begin(), known.end(),
                                [&](const ClusterNumber& n) { return key == n.key; });
               number != known.end()) {
      if (!node.is_number()) reject(file, node, fmt::format("{}: must be a number", key));
      *number->value = *node.value<double>();
    } else if (const auto count = counts.find(key); count != counts.end()) {
      if (!node.is_integer()) reject(file, node, fmt::format("{}: must be a whole number", key));
      *count->second = *node.value<std::int64_t>();
    } else if (const auto text = texts.find(key); text != texts.end()) {
      if (!node.is_string()) reject(file, node, fmt::format("{}: must be text", key));
      *text->second = *node.value<std::string>();
    } else if (double* number = node.is_number() ? kernel_number(cluster, key) : nullptr) {
      *number = *node.value<double>();
    } else if (read_timed(cluster, key, node, file)) {
      continue;
    } else if (node.is_table() && is_section(key)) {
      read(*node.as_table(), key + ".", file, cluster);
    } else {
      reject(file, node, fmt::format("{}: no such key", key));
    }
  }
}

}  // namespace

Cluster parse_cluster(std::string_view text, const std::string& file) {
  toml::table table;
  try {
    table = toml::parse(text, file);
  } catch (const toml::parse_error& error) {
    throw Error(ErrorKind::kConfig, "cluster",
                fmt::format("{}:{}: {}", file, error.source().begin.line, error.description()));
  }
  Cluster cluster;
  // A preset first: the other keys of the file replace its values.
  if (const auto* preset = table.get("preset")) {
    const auto known =
        preset->is_string() ? plan::cluster_preset(*preset->value<std::string>()) : std::nullopt;
    if (!known) {
      reject(file, *preset,
             fmt::format("preset: must be one of {}", fmt::join(plan::cluster_names(), ", ")));
    }
    cluster = *known;
  }
  read(table, "", file, cluster);
  train::parse_link_costs(text, file);  // refuses what is wrong with it
  try {
    plan::validate(cluster);
  } catch (const Error& error) {
    throw Error(ErrorKind::kConfig, "cluster", fmt::format("{}: {}", file, error.message()));
  }
  return cluster;
}

Cluster load_cluster(const std::string& name_or_path) {
  if (const auto preset = plan::cluster_preset(name_or_path)) return *preset;
  const auto text = read_text(name_or_path);
  if (!text) {
    throw Error(ErrorKind::kInputMissing, "cluster",
                fmt::format("{}: neither a file nor a preset", name_or_path))
        .hint(fmt::format("presets: {}", fmt::join(plan::cluster_names(), ", ")));
  }
  return parse_cluster(*text, name_or_path);
}

std::string to_toml(const Cluster& cluster) {
  Cluster copy = cluster;
  std::string text =
      fmt::format("name = {}\nsource = {}\nruntime = \"{}\"\nhosts = {}\ndevices_per_host = {}\n",
                  train::toml_text(cluster.name), train::toml_text(cluster.source),
                  plan::name(cluster.runtime), cluster.hosts, cluster.devices_per_host);
  // Collected by section first: TOML wants the keys of one together.
  std::map<std::string, std::string> sections;
  sections["device"] = fmt::format("name = {}\n", train::toml_text(cluster.device.name));
  // One table of keys reads and writes: what is written can be read again.
  for (const ClusterNumber& number : cluster_numbers(copy)) {
    const std::string key = number.key;
    const std::size_t dot = key.rfind('.');
    sections[key.substr(0, dot)] += fmt::format("{} = {}\n", key.substr(dot + 1), *number.value);
  }
  for (const auto& [type, peak] : cluster.device.peak_flops)
    sections["device.peak_flops"] += fmt::format("{} = {}\n", name(type), peak);
  for (const auto& [kernel, rate] : cluster.kernels) {
    std::string& lines = sections["kernels." + kernel];
    lines = fmt::format("start_s = {}\nflop_s = {}\nweight_s = {}\nbyte_s = {}\n", rate.start_s,
                        rate.flop_s, rate.weight_s, rate.byte_s);
    if (rate.timed.empty()) continue;
    lines += "timed = [  # FLOPs, bytes of weights, bytes, seconds\n";
    for (const auto& [work, seconds] : rate.timed) {
      lines +=
          fmt::format("  [{}, {}, {}, {:.4g}],\n", work.flops, work.weights, work.bytes, seconds);
    }
    lines += "]\n";
  }
  for (const auto& [section, lines] : sections) text += fmt::format("\n[{}]\n{}", section, lines);
  return text;
}

}  // namespace shoal::apps
