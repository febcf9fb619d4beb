#include "shoal/collective/elastic/etcd_keeper.h"

#include <fmt/format.h>
#include <openssl/evp.h>

#include <nlohmann/json.hpp>
#include <span>
#include <utility>
#include <variant>

#include "shoal/base/check.h"
#include "shoal/base/error.h"

namespace shoal::collective::elastic {
namespace {

using Json = nlohmann::json;
using membership::ChainAnswered;
using membership::ChainQuestion;
using membership::ChainSlot;

/// So much of an answer that is none of etcd's is shown.
constexpr std::size_t kMostShown = 200;
constexpr long kOk = 200;

std::string to_base64(std::string_view bytes) {
  std::string text(4 * ((bytes.size() + 2) / 3) + 1, '\0');
  const int size = EVP_EncodeBlock(reinterpret_cast<unsigned char*>(text.data()),
                                   reinterpret_cast<const unsigned char*>(bytes.data()),
                                   static_cast<int>(bytes.size()));
  text.resize(static_cast<std::size_t>(size));
  return text;
}

wire::Bytes from_base64(const std::string& text) {
  wire::Bytes bytes(text.size() / 4 * 3);
  const int size = EVP_DecodeBlock(reinterpret_cast<unsigned char*>(bytes.data()),
                                   reinterpret_cast<const unsigned char*>(text.data()),
                                   static_cast<int>(text.size()));
  if (size < 0 || text.size() % 4 != 0)
    throw Error(ErrorKind::kData, "etcd", "a value that is no Base64");
  // Padding is decoded to zeros.
  const std::size_t padding = text.ends_with("==") ? 2 : text.ends_with("=") ? 1 : 0;
  bytes.resize(static_cast<std::size_t>(size) - padding);
  return bytes;
}

std::string_view characters(const wire::Bytes& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::string shown(const std::string& body) {
  std::string text = body.substr(0, kMostShown);
  for (char& letter : text)
    if (letter < ' ' || letter > '~') letter = '.';
  return text;
}

/// `result`: "EQUAL" for a key that must be missing, "GREATER" for one that must be there.
Json compare_creation(const std::string& key, const char* result) {
  return {
      {"key", to_base64(key)}, {"target", "CREATE"}, {"result", result}, {"create_revision", "0"}};
}

Json put(const std::string& key, std::string_view value) {
  return {{"request_put", {{"key", to_base64(key)}, {"value", to_base64(value)}}}};
}

Json get(const std::string& key) { return {{"request_range", {{"key", to_base64(key)}}}}; }

/// The value that a transaction has found at the key; nothing where there is none. Throws
/// Json::exception and Error(data) where the answer has another shape.
std::optional<wire::Bytes> found_value(const Json& reply) {
  const Json& range = reply.at("responses").at(0).at("response_range");
  const auto kvs = range.find("kvs");
  if (kvs == range.end()) return std::nullopt;
  return from_base64(kvs->at(0).at("value").get<std::string>());
}

}  // namespace

/// An answer that has the shape of etcd's.
struct EtcdKeeper::Reply {
  Json json;
  std::string address;
};

EtcdKeeper::EtcdKeeper(Options options)
    : options_(std::move(options)), client_({.ca_file = options_.ca_file}) {
  SHOAL_USER_CHECK(!options_.addresses.empty(), "etcd", "no address of an etcd is given");
  for (const std::string& address : options_.addresses) wire::check_http_address(address);
  const Json request{{"key", to_base64(options_.prefix)}, {"limit", "1"}};
  const Reply reply = post("/v3/kv/range", request.dump(), "which cluster it is");
  cluster_ = reply.json.at("header").at("cluster_id").get<std::string>();
  name_ = fmt::format("etcd cluster {}, keys {}", cluster_, options_.prefix);
}

std::string EtcdKeeper::key(const ChainSlot& slot) const {
  return fmt::format("{}{:016x}/{:016x}/{:016x}", options_.prefix, slot.lineage, slot.epoch,
                     slot.number);
}

void EtcdKeeper::begin(const membership::View& first) {
  const std::string entry = key({first.lineage, first.epoch, 0});
  const Json request{{"success", Json::array({put(entry, "begun")})}};
  post("/v3/kv/txn", request.dump(), "to begin the chain " + entry);
}

ChainAnswered EtcdKeeper::answer(const ChainQuestion& question) {
  const std::string entry = key(question.slot);
  Json success = Json::array({put(entry, characters(encode(question.wish)))});
  if (const auto* next = std::get_if<membership::View>(&question.wish))
    success.push_back(put(key({next->lineage, next->epoch, 0}), "begun"));
  if (question.keep_from.epoch > 0) {
    success.push_back({{"request_delete_range",
                        {{"key", to_base64(key({question.keep_from.lineage, 0, 0}))},
                         {"range_end", to_base64(key(question.keep_from))}}}});
  }
  const Json request{{"compare", Json::array({compare_creation(entry, "EQUAL"),
                                              compare_creation(key(question.before), "GREATER")})},
                     {"success", std::move(success)},
                     {"failure", Json::array({get(entry)})}};
  const Reply reply = post("/v3/kv/txn", request.dump(), "what is decided at " + entry);
  ChainAnswered answer{.slot = question.slot, .entry = std::nullopt};
  try {
    if (reply.json.value("succeeded", false)) {
      answer.entry = question.wish;
    } else if (const auto value = found_value(reply.json)) {
      answer.entry = membership::decode_chain_entry(*value);
    }
  } catch (const std::exception& error) {
    throw Error(ErrorKind::kData, "etcd",
                fmt::format("{} has at {} what is no decision of a group: {}", reply.address, entry,
                            error.what()))
        .hint("Does anything else write to keys of this prefix?");
  }
  return answer;
}

// The address that has answered last comes first.
EtcdKeeper::Reply EtcdKeeper::post(const std::string& path, const std::string& request,
                                   const std::string& what) {
  std::string failures;
  for (std::size_t i = 0; i < options_.addresses.size(); ++i) {
    const std::string& address = options_.addresses[next_];
    try {
      return post_to(address, path, request);
    } catch (const Error& error) {
      if (error.kind() == ErrorKind::kAborted) throw;
      failures += (failures.empty() ? "" : "; ") + error.message();
      next_ = (next_ + 1) % options_.addresses.size();
    }
  }
  throw Error(ErrorKind::kPeerLost, "etcd", fmt::format("no etcd says {}: {}", what, failures))
      .hint("Does an etcd of version 3.4 or newer run there, and does this host reach it?");
}

EtcdKeeper::Reply EtcdKeeper::post_to(const std::string& address, const std::string& path,
                                      const std::string& request) {
  const wire::HttpAnswer answer =
      client_.post(address + path, request, Deadline::in(options_.request_timeout));
  Json json = Json::parse(answer.body, nullptr, false);
  const bool is_etcds = answer.status == kOk && json.is_object() && json.contains("header") &&
                        json["header"].is_object() && json["header"].contains("cluster_id") &&
                        json["header"]["cluster_id"].is_string();
  if (!is_etcds) {
    throw Error(ErrorKind::kData, "etcd",
                fmt::format("{}{} answers with status {}, and not with what was asked for: {}",
                            address, path, answer.status, shown(answer.body)));
  }
  // Two clusters would decide two things.
  const auto cluster = json["header"]["cluster_id"].get<std::string>();
  if (!cluster_.empty() && cluster != cluster_) {
    throw Error(ErrorKind::kData, "etcd",
                fmt::format("{} is of another etcd: cluster {}, and this group's is {}", address,
                            cluster, cluster_));
  }
  return {std::move(json), address};
}

}  // namespace shoal::collective::elastic
