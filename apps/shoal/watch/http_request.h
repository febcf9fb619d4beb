#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace shoal::apps {

/// The head of a request may have so many bytes.
inline constexpr std::size_t kLongestHead = 8192;

/// Answers an HTTP/1.x client of a server that has one page, GET /metrics, and closes each
/// connection. `received` is what the client has sent so far; returns nothing while the head of its
/// request is not complete. Answers 400 to what is no request, 404 to another path, 405 to another
/// method, 431 to a head that is too long and 505 to another version. `page` is called for the page
/// alone.
std::optional<std::string> answer_metrics_request(std::string_view received,
                                                  const std::function<std::string()>& page);

}  // namespace shoal::apps
