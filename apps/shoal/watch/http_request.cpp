#include "apps/shoal/watch/http_request.h"

#include <fmt/format.h>

#include <algorithm>

namespace shoal::apps {
namespace {

/// A request line in its three words (RFC 9112, section 3); empty words where it is none.
struct RequestLine {
  std::string_view method;
  std::string_view target;
  std::string_view version;
};

RequestLine parse_request_line(std::string_view line) {
  const std::size_t first = line.find(' ');
  const std::size_t second = line.find(' ', first == std::string_view::npos ? first : first + 1);
  if (second == std::string_view::npos) return {};
  RequestLine words{line.substr(0, first), line.substr(first + 1, second - first - 1),
                    line.substr(second + 1)};
  const bool has_method =
      !words.method.empty() && std::all_of(words.method.begin(), words.method.end(),
                                           [](char c) { return c >= 'A' && c <= 'Z'; });
  const bool has_target = !words.target.empty() && words.target[0] == '/' &&
                          std::all_of(words.target.begin(), words.target.end(),
                                      [](char c) { return c > 32 && c < 127; });
  const bool has_version = words.version.size() == 8 && words.version.starts_with("HTTP/");
  return has_method && has_target && has_version ? words : RequestLine{};
}

std::string response(std::string_view status, std::string_view type, std::string_view body,
                     std::string_view more = "") {
  return fmt::format(
      "HTTP/1.1 {}\r\nContent-Type: {}\r\nContent-Length: {}\r\n{}Connection: close\r\n\r\n{}",
      status, type, body.size(), more, body);
}

std::string refusal(std::string_view status, std::string_view more = "") {
  return response(status, "text/plain; charset=utf-8", fmt::format("{}\n", status), more);
}

}  // namespace

std::optional<std::string> answer_metrics_request(std::string_view received,
                                                  const std::function<std::string()>& page) {
  const std::size_t head_end = received.substr(0, kLongestHead).find("\r\n\r\n");
  if (head_end == std::string_view::npos) {
    if (received.size() < kLongestHead) return std::nullopt;
    return refusal("431 Request Header Fields Too Large");
  }
  const RequestLine line = parse_request_line(received.substr(0, received.find("\r\n")));
  if (line.method.empty()) return refusal("400 Bad Request");
  if (!line.version.starts_with("HTTP/1.")) return refusal("505 HTTP Version Not Supported");
  if (line.target.substr(0, line.target.find('?')) != "/metrics") return refusal("404 Not Found");
  if (line.method != "GET") return refusal("405 Method Not Allowed", "Allow: GET\r\n");
  return response("200 OK", "text/plain; version=0.0.4; charset=utf-8", page());
}

}  // namespace shoal::apps
