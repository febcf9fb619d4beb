#include "python/src/elastic_state.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <openssl/evp.h>

#include <cstring>
#include <memory>
#include <sstream>

#include "shoal/base/check.h"
#include "shoal/base/error.h"

namespace shoal::python {
namespace {

std::span<const std::byte> memory_of(const at::Tensor& tensor) {
  return {static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()};
}

/// Returns the first line in which two headers differ, of each.
std::pair<std::string, std::string> first_difference(const std::string& a, const std::string& b) {
  const std::string end = "nothing more";
  const auto next = [&](std::istringstream& lines) {
    std::string line;
    std::getline(lines, line);
    return line.empty() ? end : line;
  };
  std::istringstream lines_of_a(a);
  std::istringstream lines_of_b(b);
  std::string line_a;
  std::string line_b;
  do {
    line_a = next(lines_of_a);
    line_b = next(lines_of_b);
  } while (line_a == line_b && line_a != end);
  return {line_a, line_b};
}

}  // namespace

ElasticState::ElasticState(Named tensors) : tensors_(std::move(tensors)) {
  for (const auto& [name, tensor] : tensors_) {
    SHOAL_USER_CHECK(name.find('\n') == std::string::npos, "state",
                     "a name with a line break: '{}'", name);
    SHOAL_USER_CHECK(
        tensor.device().is_cpu() && tensor.layout() == at::kStrided && tensor.is_contiguous(),
        "state", "'{}' must be a contiguous tensor in host memory", name);
    header_ += fmt::format("{} {} [{}]\n", name, c10::toString(tensor.scalar_type()),
                           fmt::join(tensor.sizes(), ", "));
  }
  header_ += "\n";
}

std::size_t ElasticState::nbytes() const {
  std::size_t sum = 0;
  for (const auto& [name, tensor] : tensors_) sum += tensor.nbytes();
  return sum;
}

std::vector<std::byte> ElasticState::bytes() const {
  std::vector<std::byte> all;
  all.reserve(header_.size() + nbytes());
  const auto add = [&](std::span<const std::byte> part) {
    all.insert(all.end(), part.begin(), part.end());
  };
  add(std::as_bytes(std::span(header_)));
  for (const auto& [name, tensor] : tensors_) add(memory_of(tensor));
  return all;
}

collective::membership::Digest ElasticState::digest() const {
  const std::unique_ptr<EVP_MD_CTX, void (*)(EVP_MD_CTX*)> context(EVP_MD_CTX_new(),
                                                                   EVP_MD_CTX_free);
  collective::membership::Digest digest{};
  bool well = context && EVP_DigestInit_ex(context.get(), EVP_sha256(), nullptr) == 1 &&
              EVP_DigestUpdate(context.get(), header_.data(), header_.size()) == 1;
  for (const auto& [name, tensor] : tensors_) {
    const auto part = memory_of(tensor);
    well = well && EVP_DigestUpdate(context.get(), part.data(), part.size()) == 1;
  }
  well = well && EVP_DigestFinal_ex(context.get(), reinterpret_cast<unsigned char*>(digest.data()),
                                    nullptr) == 1;
  SHOAL_CHECK(well, "OpenSSL could not compute a SHA-256");
  return digest;
}

void ElasticState::read(std::span<const std::byte> bytes) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (!text.starts_with(header_)) {
    const std::string header(text.substr(0, text.find("\n\n")));
    const auto [theirs, own] = first_difference(header, header_);
    throw Error(ErrorKind::kMismatch, "state",
                fmt::format("the state of the group has {}, and this member's has {}", theirs, own))
        .hint("all members train the same tensors");
  }
  std::span<const std::byte> left = bytes.subspan(header_.size());
  if (left.size() != nbytes()) {
    throw Error(ErrorKind::kData, "state",
                fmt::format("{} bytes of tensors that have {}", left.size(), nbytes()));
  }
  for (const auto& [name, tensor] : tensors_) {
    if (tensor.nbytes() > 0) std::memcpy(tensor.mutable_data_ptr(), left.data(), tensor.nbytes());
    left = left.subspan(tensor.nbytes());
  }
}

void ElasticState::copy_from(const ElasticState& other) {
  auto source = other.tensors_.begin();
  for (const auto& [name, target] : tensors_) {
    const void* from = (source++)->second.const_data_ptr();
    if (target.const_data_ptr() != from && target.nbytes() > 0)
      std::memcpy(target.mutable_data_ptr(), from, target.nbytes());
  }
}

void ElasticState::check_same_shape(const ElasticState& other) const {
  if (other.header_ == header_) return;
  const auto [theirs, own] = first_difference(other.header_, header_);
  throw Error(
      ErrorKind::kUsage, "step",
      fmt::format("the attempt leads to a state with {}, where the group's has {}", theirs, own));
}

}  // namespace shoal::python
