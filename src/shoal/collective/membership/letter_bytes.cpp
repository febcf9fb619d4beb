#include <fmt/format.h>

#include <algorithm>
#include <type_traits>
#include <utility>

#include "shoal/base/error.h"
#include "shoal/collective/membership/chain.h"
#include "shoal/collective/membership/fields.h"
#include "shoal/collective/membership/letter.h"

namespace shoal::collective::membership {
namespace {

/// Whether V is T or const T: a list of fields serves the writer and the reader.
template <class V, class T>
concept Is = std::same_as<std::remove_const_t<V>, T>;

// The order of these lines is the order of the bytes.
void each(auto& f, Is<MemberId> auto& v) { f.field("id", v.bytes); }
void each(auto& f, Is<wire::Endpoint> auto& v) {
  f.field("host", v.host);
  f.field("port", v.port);
}
void each(auto& f, Is<Member> auto& v) {
  f.field("member", v.id);
  f.field("endpoints", v.endpoints);
  f.field("width", v.width);
  f.field("protocol", v.protocol);
  f.field("site", v.site);
  f.field("mesh", v.mesh);
}
void each(auto& f, Is<Admission::Used> auto& v) {
  f.field("nonce", v.nonce);
  f.field("expires", v.expires_s);
}
void each(auto& f, Is<Admission> auto& v) {
  f.field("by token", v.by_token);
  f.field("cluster", v.cluster);
  f.field("key of tokens", v.key);
  f.field("clock of tokens", v.clock_s);
  f.field("used tokens", v.used);
}
void each(auto& f, Is<View> auto& v) {
  f.field("epoch", v.epoch);
  f.field("lineage", v.lineage);
  f.field("parent", v.parent);
  f.field("first step", v.first_step);
  f.field("state", v.state);
  f.field("samples", v.samples);
  f.field("members", v.members);
  f.field("fresh members", v.fresh);
  f.field("witnesses", v.witnesses);
  f.field("removed", v.removed);
  f.field("keepers", v.keepers);
  f.field("admission", v.admission);
  f.field("outside keeper", v.kept_by);
}
void each(auto& f, Is<Ballot> auto& v) {
  f.field("round", v.round);
  f.field("proposer", v.proposer);
}
void each(auto& f, Is<Outcome> auto& v) {
  f.field("step", v.step);
  f.field("kind of outcome", v.kind);
  f.field("state", v.state);
  f.field("samples", v.samples);
  f.field("cause", v.cause);
  f.field("odd members", v.odd);
}
void each(auto& f, Is<Place> auto& v) {
  f.field("lineage", v.lineage);
  f.field("epoch", v.epoch);
  f.field("step", v.step);
  f.field("state", v.state);
  f.field("samples", v.samples);
}
void each(auto& f, Is<Beat> auto& v) {
  f.field("place", v.place);
  f.field("accused", v.accused);
  f.field("leaving", v.leaving);
}
void each(auto& f, Is<Report> auto& v) {
  f.field("step", v.step);
  f.field("failed", v.failed);
  f.field("state", v.state);
  f.field("samples", v.samples);
  f.field("cause", v.cause);
}
void each(auto& f, Is<AcceptStep> auto& v) {
  f.field("ballot", v.ballot);
  f.field("outcome", v.outcome);
}
void each(auto& f, Is<AcceptedStep> auto& v) {
  f.field("ballot", v.ballot);
  f.field("step", v.step);
}
void each(auto& f, Is<Decided> auto& v) {
  f.field("outcome", v.outcome);
  f.field("view follows", v.view_follows);
}
void each(auto& f, Is<Readiness> auto& v) {
  f.field("step", v.step);
  f.field("ready", v.ready);
}
void each(auto& f, Is<MayBegin> auto& v) { f.field("step", v.step); }
void each(auto& f, Is<Prepare> auto& v) { f.field("ballot", v.ballot); }
void each(auto& f, Is<ViewVote> auto& v) {
  f.field("ballot", v.ballot);
  f.field("view", v.view);
}
void each(auto& f, Is<Promise> auto& v) {
  f.field("ballot", v.ballot);
  f.field("accepted view", v.view);
  f.field("accepted step", v.step);
}
void each(auto& f, Is<AcceptView> auto& v) { f.field("vote", v.vote); }
void each(auto& f, Is<AcceptedView> auto& v) { f.field("ballot", v.ballot); }
void each(auto& f, Is<Refusal> auto& v) {
  f.field("refused ballot", v.refused);
  f.field("promised ballot", v.promised);
}
void each(auto& f, Is<Hold> auto& v) { f.field("view", v.view); }
void each(auto& f, Is<Held> auto& v) { f.field("view's digest", v.view); }
void each(auto& f, Is<Start> auto& v) { f.field("view", v.view); }
void each(auto& f, Is<Join> auto& v) {
  f.field("who", v.who);
  f.field("ready", v.ready);
  f.field("witness", v.witness);
  f.field("token", v.token);
  f.field("outside keeper", v.kept_by);
}
void each(auto& f, Is<JoinRefused> auto& v) {
  f.field("why", v.why);
  f.field("what to do", v.what_to_do);
}
void each(auto& f, Is<ForkAsk> auto& v) {
  f.field("ballot", v.ballot);
  f.field("survivors", v.survivors);
}
void each(auto& f, Is<ForkPromise> auto& v) {
  f.field("ballot", v.ballot);
  f.field("place", v.place);
}
void each(auto& f, Is<Met> auto& v) {
  f.field("who", v.who);
  f.field("place", v.place);
}
void each(auto& f, Is<Yield> auto& v) { f.field("place", v.place); }

template <std::size_t index = 0>
Body body_of_kind(std::size_t kind, FieldReader& reader) {
  if constexpr (index == std::variant_size_v<Body>) {
    reader.refuse("kind", fmt::format("{} names no letter", kind));
  } else {
    if (kind != index) return body_of_kind<index + 1>(kind, reader);
    std::variant_alternative_t<index, Body> body;
    each(reader, body);
    return body;
  }
}

constexpr std::uint8_t kFormat = 4;

}  // namespace

template <class Element>
void FieldWriter::field(const char* name, const std::vector<Element>& list) {
  field(name, static_cast<std::uint32_t>(list.size()));
  for (const Element& element : list) each(*this, element);
}

template <class Value>
void FieldWriter::field(const char* name, const std::optional<Value>& value) {
  field(name, value.has_value());
  if (value) each(*this, *value);
}

template <class Struct>
requires std::is_class_v<Struct>
void FieldWriter::field(const char*, const Struct& value) { each(*this, value); }

std::span<const std::byte> FieldReader::take(const char* name, std::size_t size) {
  if (size > bytes_.size() - at_)
    refuse(name, fmt::format("{} bytes are needed, {} are left", size, bytes_.size() - at_));
  at_ += size;
  return bytes_.subspan(at_ - size, size);
}

void FieldReader::refuse(const char* name, const std::string& why) const {
  throw Error(ErrorKind::kData, "membership",
              fmt::format("{} of {} bytes cannot be read: {} at byte {}: {}", what_, bytes_.size(),
                          name, at_, why))
      .hint("Do all members run the same version of Shoal?");
}

void FieldReader::end() const {
  if (at_ != bytes_.size()) refuse("end", fmt::format("{} bytes are left", bytes_.size() - at_));
}

void FieldReader::field(const char* name, bool& flag) {
  std::uint8_t value = 0;
  field(name, value);
  if (value > 1) refuse(name, fmt::format("{} is neither 0 nor 1", value));
  flag = value == 1;
}

void FieldReader::field(const char* name, Outcome::Kind& kind) {
  std::uint8_t value = 0;
  field(name, value);
  if (value > static_cast<std::uint8_t>(Outcome::Kind::kAbort))
    refuse(name, fmt::format("{} is no kind", value));
  kind = static_cast<Outcome::Kind>(value);
}

void FieldReader::field(const char* name, std::string& text) {
  std::uint32_t size = 0;
  field(name, size);
  if (size > kMostText)
    refuse(name, fmt::format("{} characters, at most {} are allowed", size, kMostText));
  const std::span<const std::byte> from = take(name, size);
  text.assign(reinterpret_cast<const char*>(from.data()), from.size());
}

template <class Element>
void FieldReader::field(const char* name, std::vector<Element>& list) {
  std::uint32_t size = 0;
  field(name, size);
  const std::size_t most =
      std::is_same_v<Element, wire::Endpoint> ? Member::kMostEndpoints : kMostElements;
  if (size > most) refuse(name, fmt::format("{} elements, at most {} are allowed", size, most));
  list.clear();
  for (std::uint32_t i = 0; i < size; ++i) {
    Element element;
    each(*this, element);
    list.push_back(std::move(element));
  }
}

template <class Value>
void FieldReader::field(const char* name, std::optional<Value>& value) {
  bool present = false;
  field(name, present);
  value.reset();
  if (!present) return;
  Value read;
  field(name, read);
  value = std::move(read);
}

template <class Struct>
requires std::is_class_v<Struct>
void FieldReader::field(const char* name, Struct& value) {
  each(*this, value);
  if constexpr (std::same_as<Struct, Ballot>) {
    if (value.round > Ballot::kMostRound)
      refuse(name, fmt::format("round {} was never reached", value.round));
  }
  if constexpr (std::same_as<Struct, View>) {
    try {
      check(value);
    } catch (const Error& error) {
      refuse(name, error.message());
    }
  }
}

void write_fields(FieldWriter& writer, const View& view) { each(writer, view); }

wire::Bytes encode(const Letter& letter) {
  FieldWriter writer;
  writer.field("format", kFormat);
  writer.field("kind", static_cast<std::uint8_t>(letter.body.index()));
  writer.field("from", letter.from);
  writer.field("to", letter.to);
  writer.field("lineage", letter.lineage);
  writer.field("epoch", letter.epoch);
  writer.field("relayed", letter.relayed);
  std::visit([&](const auto& body) { each(writer, body); }, letter.body);
  return writer.take();
}

Letter decode_letter(std::span<const std::byte> bytes) {
  FieldReader reader("a letter", bytes);
  std::uint8_t format = 0;
  std::uint8_t kind = 0;
  Letter letter;
  reader.field("format", format);
  if (format != kFormat)
    reader.refuse("format", fmt::format("it is {}, and {} is expected", format, kFormat));
  reader.field("kind", kind);
  reader.field("from", letter.from);
  reader.field("to", letter.to);
  reader.field("lineage", letter.lineage);
  reader.field("epoch", letter.epoch);
  reader.field("relayed", letter.relayed);
  letter.body = body_of_kind(kind, reader);
  reader.end();
  letter.hop = letter.to;
  return letter;
}

View decode_view(std::span<const std::byte> bytes) {
  FieldReader reader("a view", bytes);
  View view;
  reader.field("view", view);
  reader.end();
  return view;
}

wire::Bytes encode(const ChainEntry& entry) {
  FieldWriter writer;
  writer.field("format", kFormat);
  writer.field("kind", static_cast<std::uint8_t>(entry.index()));
  std::visit([&](const auto& value) { each(writer, value); }, entry);
  return writer.take();
}

ChainEntry decode_chain_entry(std::span<const std::byte> bytes) {
  FieldReader reader("an entry", bytes);
  std::uint8_t format = 0;
  reader.field("format", format);
  if (format != kFormat)
    reader.refuse("format", fmt::format("it is {}, and {} is expected", format, kFormat));
  bool is_view = false;
  reader.field("kind", is_view);
  ChainEntry entry;
  if (is_view) {
    View view;
    reader.field("view", view);
    entry = std::move(view);
  } else {
    Outcome outcome;
    reader.field("outcome", outcome);
    entry = std::move(outcome);
  }
  reader.end();
  return entry;
}

}  // namespace shoal::collective::membership
