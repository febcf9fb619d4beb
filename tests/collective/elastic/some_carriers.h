#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "shoal/collective/elastic/letter_carrier.h"

// Members of one group in this process, each with its carrier.

namespace shoal::collective::elastic {

/// A deadline that is met unless something hangs.
inline Deadline soon() { return Deadline::in(std::chrono::seconds(120)); }

/// Nobody is suspected here unless it is really gone, on however slow a machine.
inline membership::Settings patient() {
  membership::Settings settings;
  settings.beat = std::chrono::milliseconds(100);
  settings.repeat = std::chrono::milliseconds(100);
  settings.stand_in = std::chrono::milliseconds(500);
  settings.suspect_after = std::chrono::seconds(30);
  settings.quorum_patience = std::chrono::seconds(60);
  return settings;
}

/// For members that die. What takes longer than this on the living is taken for a death.
inline membership::Settings watchful() {
  membership::Settings settings = patient();
  settings.suspect_after = std::chrono::seconds(4);
  return settings;
}

inline LetterCarrier::Options network(const membership::Settings& settings = patient()) {
  LetterCarrier::Options options;
  options.key = "the cluster's key";
  options.membership = settings;
  return options;
}

/// Takes news until a view of so many members begins; nothing where none does. In each view the
/// member waits for joiners.
inline std::optional<View> view_of(LetterCarrier& carrier, std::size_t members) {
  for (const Deadline end = soon(); !end.passed();) {
    const auto news = carrier.take_news(end);
    if (!news) return std::nullopt;
    const auto* started = std::get_if<membership::ViewStarted>(&*news);
    if (!started) continue;
    const View& view = started->view;
    carrier.post(membership::JoinersAwaited{.epoch = view.epoch, .step = view.first_step});
    if (view.members.size() == members) return view;
  }
  return std::nullopt;
}

/// Takes news until a step is decided; nothing where none is.
inline std::optional<membership::Outcome> next_outcome(LetterCarrier& carrier) {
  for (const Deadline end = soon(); !end.passed();) {
    const auto news = carrier.take_news(end);
    if (!news) return std::nullopt;
    if (const auto* decided = std::get_if<membership::StepDecided>(&*news)) return decided->outcome;
  }
  return std::nullopt;
}

/// The first one founds the group; the others join it one after the other, so that the order of
/// the members is known.
inline std::vector<std::unique_ptr<LetterCarrier>> carriers(
    std::size_t count, const LetterCarrier::Options& options = network()) {
  std::vector<std::unique_ptr<LetterCarrier>> all;
  all.push_back(LetterCarrier::found(options, Digest{}));
  while (all.size() < count) {
    all.push_back(LetterCarrier::join(options, {all.front()->endpoint()}));
    for (const auto& carrier : all)
      if (!view_of(*carrier, all.size())) return {};
  }
  return all;
}

}  // namespace shoal::collective::elastic
