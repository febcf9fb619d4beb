#include "shoal/wire/http_client.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "shoal/base/check.h"
#include "shoal/base/duration.h"
#include "shoal/base/error.h"
#include "shoal/wire/address.h"

#if SHOAL_HAS_CURL
#include <curl/curl.h>
#include <dlfcn.h>
#endif

namespace shoal::wire {

void check_http_address(const std::string& text) {
  const auto refuse = [&] {
    throw Error(ErrorKind::kConfig, "http",
                fmt::format("\"{}\" is no address: http://HOST:PORT or https://HOST:PORT", text));
  };
  const std::size_t scheme = text.find("://");
  if (!text.starts_with("http://") && !text.starts_with("https://")) refuse();
  const std::string address = text.substr(scheme + 3);
  if (address.find_first_of("/?#@") != std::string::npos) refuse();
  try {
    parse_endpoint(address);
  } catch (const Error&) {
    refuse();
  }
}

#if SHOAL_HAS_CURL

namespace {

/// libcurl's functions, loaded when a client is made: linked, it and the libraries behind it
/// would begin with every program.
struct Curl {
  decltype(&curl_global_init) global_init = nullptr;
  decltype(&curl_easy_init) easy_init = nullptr;
  decltype(&curl_easy_cleanup) easy_cleanup = nullptr;
  decltype(&curl_easy_reset) easy_reset = nullptr;
  decltype(&curl_easy_setopt) easy_setopt = nullptr;
  decltype(&curl_easy_perform) easy_perform = nullptr;
  decltype(&curl_easy_getinfo) easy_getinfo = nullptr;
  decltype(&curl_easy_strerror) easy_strerror = nullptr;
  decltype(&curl_slist_append) slist_append = nullptr;
  decltype(&curl_slist_free_all) slist_free_all = nullptr;
  std::string missing;  ///< says why it cannot be used; empty: it can

  Curl() {
    // Never closed: libraries behind it keep what they have registered.
    void* const library = ::dlopen("libcurl.so.4", RTLD_NOW | RTLD_LOCAL);
    if (!library) {
      const char* const why = ::dlerror();
      missing = why ? why : "libcurl.so.4 does not load";
      return;
    }
    find(library, "curl_global_init", global_init);
    find(library, "curl_easy_init", easy_init);
    find(library, "curl_easy_cleanup", easy_cleanup);
    find(library, "curl_easy_reset", easy_reset);
    find(library, "curl_easy_setopt", easy_setopt);
    find(library, "curl_easy_perform", easy_perform);
    find(library, "curl_easy_getinfo", easy_getinfo);
    find(library, "curl_easy_strerror", easy_strerror);
    find(library, "curl_slist_append", slist_append);
    find(library, "curl_slist_free_all", slist_free_all);
    if (missing.empty() && global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK)
      missing = "libcurl cannot begin";
  }

 private:
  template <class Function>
  void find(void* library, const char* name, Function& function) {
    function = reinterpret_cast<Function>(::dlsym(library, name));
    if (!function) missing = fmt::format("libcurl.so.4 has no {}", name);
  }
};

const Curl& libcurl() {
  static const Curl curl;
  return curl;
}

}  // namespace

bool HttpClient::is_available() { return libcurl().missing.empty(); }

struct HttpClient::Handle {
  CURL* curl = nullptr;
  curl_slist* headers = nullptr;
  ~Handle() {
    libcurl().slist_free_all(headers);
    libcurl().easy_cleanup(curl);
  }
};

namespace {

/// Receives an answer. libcurl calls through C: nothing may be thrown.
struct Receiving {
  std::string body;
  std::size_t most = 0;
  bool is_too_long = false;
  const std::atomic<bool>* stop = nullptr;
};

std::size_t take(char* bytes, std::size_t, std::size_t size, void* context) {
  auto& receiving = *static_cast<Receiving*>(context);
  if (size > receiving.most - receiving.body.size()) {
    receiving.is_too_long = true;
    return CURL_WRITEFUNC_ERROR;
  }
  receiving.body.append(bytes, size);
  return size;
}

int is_stopped(void* context, curl_off_t, curl_off_t, curl_off_t, curl_off_t) {
  return *static_cast<Receiving*>(context)->stop ? 1 : 0;
}

template <class Value>
void set(CURL* curl, CURLoption option, Value value) {
  const CURLcode code = libcurl().easy_setopt(curl, option, value);
  SHOAL_CHECK(code == CURLE_OK, "libcurl refuses option {}: {}", static_cast<int>(option),
              libcurl().easy_strerror(code));
}

}  // namespace

HttpClient::HttpClient(Options options) : options_(std::move(options)) {
  if (!is_available()) {
    throw Error(ErrorKind::kConfig, "http", libcurl().missing)
        .hint("Install libcurl4 (Debian), or what has libcurl.so.4 on this system.");
  }
  handle_ = std::make_unique<Handle>();
  handle_->curl = libcurl().easy_init();
  handle_->headers = libcurl().slist_append(nullptr, "Content-Type: application/json");
  SHOAL_CHECK(handle_->curl && handle_->headers, "libcurl has no memory");
}

HttpClient::~HttpClient() = default;

HttpAnswer HttpClient::post(const std::string& url, const std::string& json, Deadline deadline) {
  CURL* const curl = handle_->curl;
  Receiving receiving{.body = {}, .most = options_.most_bytes, .stop = &stop_};
  std::string why(CURL_ERROR_SIZE, '\0');
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline.left());
  libcurl().easy_reset(curl);
  set(curl, CURLOPT_URL, url.c_str());
  set(curl, CURLOPT_HTTPHEADER, handle_->headers);
  set(curl, CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(json.size()));
  set(curl, CURLOPT_POSTFIELDS, json.c_str());
  set(curl, CURLOPT_HTTP_VERSION, static_cast<long>(CURL_HTTP_VERSION_1_1));
  set(curl, CURLOPT_PROTOCOLS_STR, "http,https");
  set(curl, CURLOPT_NOPROXY, "*");
  set(curl, CURLOPT_NOSIGNAL, 1L);
  set(curl, CURLOPT_TIMEOUT_MS, static_cast<long>(std::max<std::int64_t>(1, left.count())));
  set(curl, CURLOPT_ERRORBUFFER, why.data());
  set(curl, CURLOPT_WRITEFUNCTION, &take);
  set(curl, CURLOPT_WRITEDATA, static_cast<void*>(&receiving));
  set(curl, CURLOPT_NOPROGRESS, 0L);
  set(curl, CURLOPT_XFERINFOFUNCTION, &is_stopped);
  set(curl, CURLOPT_XFERINFODATA, static_cast<void*>(&receiving));
  if (!options_.ca_file.empty()) set(curl, CURLOPT_CAINFO, options_.ca_file.c_str());
  const CURLcode code = libcurl().easy_perform(curl);
  // The handle keeps no pointer to what ends here.
  HttpAnswer answer{.body = std::move(receiving.body)};
  libcurl().easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &answer.status);
  libcurl().easy_reset(curl);
  if (code == CURLE_OK) return answer;
  if (receiving.is_too_long) {
    throw Error(ErrorKind::kData, "http",
                fmt::format("{} answers with more than {} bytes", url, options_.most_bytes));
  }
  if (stop_) throw Error(ErrorKind::kAborted, "http", url + ": no longer asked");
  const auto kind = code == CURLE_OPERATION_TIMEDOUT ? ErrorKind::kTimeout : ErrorKind::kPeerLost;
  throw Error(kind, "http",
              fmt::format("{}: {}", url, why[0] ? why.c_str() : libcurl().easy_strerror(code)));
}

#else

struct HttpClient::Handle {};

bool HttpClient::is_available() { return false; }

HttpClient::HttpClient(Options options) : options_(std::move(options)) {
  throw Error(ErrorKind::kConfig, "http", "this build has no libcurl, and makes no HTTP requests")
      .hint("Install libcurl4-openssl-dev (Debian), and configure and build again.");
}

HttpClient::~HttpClient() = default;

HttpAnswer HttpClient::post(const std::string& url, const std::string&, Deadline) {
  throw Error(ErrorKind::kConfig, "http", url + ": this build makes no HTTP requests");
}

#endif

}  // namespace shoal::wire
