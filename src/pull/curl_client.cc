// The HTTP client over libcurl; only this file includes it.
#include <curl/curl.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <optional>
#include <string_view>

#include "base/errors.h"
#include "base/parse_number.h"
#include "base/strings.h"
#include "pull/http_client.h"
#include "pull/this_machine.h"
#include "pull/url.h"

namespace kvcache::pull {
namespace {

constexpr std::size_t kMaxHeadBytes = std::size_t{64} << 10;
constexpr long kBufferBytes = 512L << 10;
constexpr long kSlowBytes = 1024;  // a second

std::string_view Trimmed(std::string_view text) {
  const auto is_space = [](char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; };
  while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
  return text;
}

// Returns the port of the proxy that libcurl takes for a scheme; 0: there is none. A proxy may be on this machine. It
// resolves the names of hosts itself.
int ProxyPort(const std::string& scheme) {
  const std::string own = scheme + "_proxy";
  std::array<const char*, 4> names = {own.c_str(), "", "all_proxy", "ALL_PROXY"};
  if (scheme == "https")
    names[1] = "HTTPS_PROXY";  // HTTP_PROXY could be a header of a CGI program's client
  for (const char* const name : names) {
    const char* const value = *name == '\0' ? nullptr : std::getenv(name);
    if (value == nullptr || *value == '\0') continue;
    std::string_view text = value;
    const std::size_t slashes = text.find("://");
    const int usual = text.starts_with("https://") ? 443 : 1080;
    if (slashes != text.npos) text.remove_prefix(slashes + 3);
    text = text.substr(0, text.find('/'));
    const std::size_t colon = text.rfind(':');
    if (colon == text.npos || text.ends_with(']')) return usual;
    return ParseNumber<int>(std::string(text.substr(colon + 1))).value_or(usual);
  }
  return 0;
}

// The state of one exchange.
struct Exchange {
  CURL* curl = nullptr;
  const std::string& url;
  const HttpRequest& request;
  const int proxy_port;  // 0: no proxy is used
  const HttpSink& sink;
  const std::function<bool()>& cancelled;
  HttpHead head{};
  std::size_t head_bytes = 0;
  bool has_head = false;
  Status status{};  // that ended the exchange

  // Gives the head to the sink, once.
  bool GiveHead() {
    if (has_head) return status.ok();
    has_head = true;
    long code = 0;
    (void)curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &code);
    head.status = static_cast<int>(code);
    const char* address = nullptr;
    long port = 0;
    (void)curl_easy_getinfo(curl, CURLINFO_PRIMARY_IP, &address);
    (void)curl_easy_getinfo(curl, CURLINFO_PRIMARY_PORT, &port);
    head.from_this_machine =
        address != nullptr && IsAddressOfThisMachine(address) && !IsProxy(static_cast<int>(port));
    // An old connection is used again without a socket.
    status =
        head.from_this_machine && !request.may_reach_this_machine ? Refused() : sink.on_head(head);
    return status.ok();
  }

  bool IsProxy(int port) const { return proxy_port != 0 && port == proxy_port; }

  Status Refused() const {
    return InvalidArgument(
        StrCat(PlaceOf(url), ": its host is this machine, and another one leads there; refused"));
  }
};

int PortOf(const sockaddr& address) {
  sockaddr_in v4{};
  sockaddr_in6 v6{};
  if (address.sa_family == AF_INET) std::memcpy(&v4, &address, sizeof(v4));
  if (address.sa_family == AF_INET6) std::memcpy(&v6, &address, sizeof(v6));
  return ntohs(address.sa_family == AF_INET6 ? v6.sin6_port : v4.sin_port);
}

// Opens a socket for a resolved address, unless the request must not reach it.
curl_socket_t OpenSocket(void* user, curlsocktype /*purpose*/, curl_sockaddr* address) {
  auto& exchange = *static_cast<Exchange*>(user);
  const bool refused = !exchange.request.may_reach_this_machine && IsThisMachine(address->addr) &&
                       !exchange.IsProxy(PortOf(address->addr));
  if (refused) {
    exchange.status = exchange.Refused();
    return CURL_SOCKET_BAD;
  }
  return socket(address->family, address->socktype | SOCK_CLOEXEC, address->protocol);
}

std::size_t TakeHeader(char* data, std::size_t /*size*/, std::size_t count, void* user) {
  auto& exchange = *static_cast<Exchange*>(user);
  const std::string_view line(data, count);
  exchange.head_bytes += count;
  if (exchange.head_bytes > kMaxHeadBytes) {
    exchange.status = Corrupt(
        StrCat(PlaceOf(exchange.url), ": the headers have more than ", kMaxHeadBytes, " bytes"));
    return 0;
  }
  if (line.starts_with("HTTP/")) exchange.head.headers.clear();
  const std::size_t colon = line.find(':');
  if (colon == std::string_view::npos || colon == 0) return count;
  std::string name(line.substr(0, colon));
  std::transform(name.begin(), name.end(), name.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
  exchange.head.headers[name] = Trimmed(line.substr(colon + 1));
  return count;
}

std::size_t TakeBytes(char* data, std::size_t /*size*/, std::size_t count, void* user) {
  auto& exchange = *static_cast<Exchange*>(user);
  if (!exchange.GiveHead()) return 0;
  exchange.status = exchange.sink.on_bytes(std::as_bytes(std::span(data, count)));
  return exchange.status.ok() ? count : 0;
}

int AskCancelled(void* user, curl_off_t /*total*/, curl_off_t /*now*/, curl_off_t /*to_send*/,
                 curl_off_t /*sent*/) {
  const auto& cancelled = static_cast<Exchange*>(user)->cancelled;
  return cancelled && cancelled() ? 1 : 0;
}

class CurlClient final : public HttpClient {
 public:
  CurlClient(CURL* curl, CurlOptions options) : curl_(curl), options_(std::move(options)) {}
  ~CurlClient() override { curl_easy_cleanup(curl_); }
  CurlClient(const CurlClient&) = delete;
  CurlClient& operator=(const CurlClient&) = delete;

  Status Get(const HttpRequest& request, const HttpSink& sink) override {
    const auto url = ParseUrl(request.url);
    if (!url.ok()) return url.status();
    const bool is_local = NamesThisMachine(url->host);
    Exchange exchange{.curl = curl_,
                      .url = request.url,
                      .request = request,
                      .proxy_port = is_local ? 0 : ProxyPort(url->scheme),
                      .sink = sink,
                      .cancelled = options_.cancelled};
    curl_slist* headers = nullptr;
    for (const auto& [name, value] : request.headers) {
      headers = curl_slist_append(headers, StrCat(name, ": ", value).c_str());
    }
    Set(request, headers, exchange);
    if (is_local) Set(CURLOPT_PROXY, "");  // nobody else sees what this machine is told
    const CURLcode code = curl_easy_perform(curl_);
    if (code == CURLE_OK) (void)exchange.GiveHead();  // of an answer without a body
    double seconds = 0.0;
    (void)curl_easy_getinfo(curl_, CURLINFO_TOTAL_TIME, &seconds);
    curl_easy_reset(curl_);  // keeps the connection
    curl_slist_free_all(headers);
    if (code == CURLE_OK || !exchange.status.ok()) return exchange.status;
    // libcurl's clock may be some milliseconds ahead.
    if (code == CURLE_OPERATION_TIMEDOUT && request.max_seconds > 0 &&
        seconds + 0.5 >= request.max_seconds) {
      return {StatusCode::kIo, StrCat(PlaceOf(request.url), ": the answer is not complete after ",
                                      request.max_seconds, " s")};
    }
    return ErrorOf(code, request.url);
  }

 private:
  template <class Value>
  void Set(CURLoption option, Value value) {
    (void)curl_easy_setopt(curl_, option, value);
  }

  void Set(const HttpRequest& request, curl_slist* headers, Exchange& exchange) {
    error_[0] = '\0';
    Set(CURLOPT_ERRORBUFFER, static_cast<char*>(error_));
    Set(CURLOPT_URL, request.url.c_str());
    Set(CURLOPT_PROTOCOLS_STR, "http,https");
    Set(CURLOPT_HTTPHEADER, headers);
    Set(CURLOPT_USERAGENT, "kvcache");
    Set(CURLOPT_NOSIGNAL, 1L);
    Set(CURLOPT_FOLLOWLOCATION, 0L);
    Set(CURLOPT_BUFFERSIZE, kBufferBytes);
    Set(CURLOPT_CONNECTTIMEOUT, static_cast<long>(options_.stall_seconds));
    Set(CURLOPT_TIMEOUT, static_cast<long>(request.max_seconds));
    Set(CURLOPT_OPENSOCKETFUNCTION, &OpenSocket);
    Set(CURLOPT_OPENSOCKETDATA, static_cast<void*>(&exchange));
    Set(CURLOPT_LOW_SPEED_LIMIT, kSlowBytes);
    Set(CURLOPT_LOW_SPEED_TIME, static_cast<long>(options_.stall_seconds));
    Set(CURLOPT_HEADERFUNCTION, &TakeHeader);
    Set(CURLOPT_HEADERDATA, static_cast<void*>(&exchange));
    Set(CURLOPT_WRITEFUNCTION, &TakeBytes);
    Set(CURLOPT_WRITEDATA, static_cast<void*>(&exchange));
    Set(CURLOPT_NOPROGRESS, 0L);
    Set(CURLOPT_XFERINFOFUNCTION, &AskCancelled);
    Set(CURLOPT_XFERINFODATA, static_cast<void*>(&exchange));
    const char* const certificates = std::getenv("SSL_CERT_FILE");
    if (certificates != nullptr && *certificates != '\0') Set(CURLOPT_CAINFO, certificates);
  }

  Status ErrorOf(CURLcode code, const std::string& url) const {
    const std::string place = PlaceOf(url);
    if (code == CURLE_ABORTED_BY_CALLBACK) return {StatusCode::kCancelled, "stopped"};
    if (code == CURLE_OPERATION_TIMEDOUT) {
      return {StatusCode::kIo, StrCat(place, ": no answer, or less than ", kSlowBytes,
                                      " bytes a second, for ", options_.stall_seconds, " s")};
    }
    const std::string why = error_[0] != '\0' ? error_ : curl_easy_strerror(code);
    return {StatusCode::kIo, StrCat(place, ": ", why)};
  }

  CURL* curl_;
  const CurlOptions options_;
  char error_[CURL_ERROR_SIZE] = "";
};

}  // namespace

Result<std::unique_ptr<HttpClient>> MakeCurlClient(CurlOptions options) {
  static std::once_flag once;
  std::call_once(once, [] { (void)curl_global_init(CURL_GLOBAL_DEFAULT); });
  CURL* const curl = curl_easy_init();
  if (curl == nullptr) return Status(StatusCode::kInternal, "libcurl does not start");
  return std::unique_ptr<HttpClient>(std::make_unique<CurlClient>(curl, std::move(options)));
}

}  // namespace kvcache::pull
