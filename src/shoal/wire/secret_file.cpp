#include "shoal/wire/secret_file.h"

#include <fmt/format.h>

#include <cctype>
#include <fstream>
#include <iterator>

#include "shoal/base/system_error.h"

namespace shoal::wire {

std::string read_secret(const std::string& file, const std::string& what, const std::string& hint) {
  std::ifstream in(file);
  std::string secret{std::istreambuf_iterator<char>(in), {}};
  while (!secret.empty() && std::isspace(static_cast<unsigned char>(secret.back()))) {
    secret.pop_back();
  }
  if (!in) {
    throw system_error(ErrorKind::kInputMissing, "secret",
                       fmt::format("{}: cannot read {}", what, file));
  }
  if (secret.empty()) {
    throw Error(ErrorKind::kConfig, "secret", fmt::format("{}: {} is empty", what, file))
        .hint(hint);
  }
  return secret;
}

}  // namespace shoal::wire
