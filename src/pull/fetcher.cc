#include "pull/fetcher.h"

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>

#include "base/errors.h"
#include "base/strings.h"
#include "model_store/bounded_json.h"
#include "pull/this_machine.h"

namespace kvcache::pull {
namespace {

constexpr std::size_t kMaxHops = 10;
constexpr std::size_t kMaxTokenBytes = std::size_t{1} << 20;
// Of the body of an answer that nobody reads: less keeps the connection, more ends it.
constexpr std::size_t kMaxSkippedBytes = std::size_t{64} << 10;

bool IsRedirect(int status) {
  return status == 301 || status == 302 || status == 303 || status == 307 || status == 308;
}

// Returns the error of a status, and Ok for those that bring what was asked for.
Status StatusOf(int status, const std::string& place) {
  if (status == 200 || status == 206) return Status::Ok();
  const std::string text = StrCat(place, ": the server answers ", status);
  if (status == 404) return NotFound(StrCat(text, ", not found"));
  if (status == 401 || status == 403) {
    return Unsupported(StrCat(text, ": it does not exist, or needs a token"));
  }
  if (status == 408 || status == 429 || status >= 500) return {StatusCode::kIo, text};
  return Unsupported(StrCat(text, "; must be 200 or 206"));
}

// Returns a parameter of a challenge: Bearer realm="…",service="…".
std::string ParameterOf(const std::string& challenge, const std::string& name) {
  const std::string key = name + "=\"";
  std::size_t at = challenge.find(key);
  while (at != std::string::npos && at > 0 && challenge[at - 1] != ' ' &&
         challenge[at - 1] != ',') {
    at = challenge.find(key, at + 1);
  }
  if (at == std::string::npos) return {};
  at += key.size();
  const std::size_t end = challenge.find('"', at);
  return end == std::string::npos ? std::string() : challenge.substr(at, end - at);
}

// Returns whether a challenge names the address that gives tokens. Hubs that have tokens of their own name none.
bool NamesRealm(const std::string& challenge) {
  std::string head = challenge.substr(0, 7);
  std::transform(head.begin(), head.end(), head.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
  return head == "bearer " && ParameterOf(challenge, "realm").find("://") != std::string::npos;
}

}  // namespace

void Fetcher::UseToken(std::string host, std::string token) {
  std::erase_if(tokens_, [&](const auto& known) { return known.first == host; });
  tokens_.emplace_back(std::move(host), std::move(token));
}

std::string Fetcher::TokenFor(const Url& url) const {
  if (url.scheme != "https" && !NamesThisMachine(url.host)) return {};
  for (const auto& [host, token] : tokens_) {
    if (host == url.host) return token;
  }
  return {};
}

Result<Url> Fetcher::Redirected(const Url& from, const HttpHead& head,
                                std::vector<std::string>* seen) {
  const std::string place = PlaceOf(from.Text());
  const std::string location = head.Header("location");
  if (location.empty()) {
    return InvalidArgument(
        StrCat(place, ": the server answers ", head.status, " without a Location"));
  }
  auto next = ResolveUrl(from, location);
  if (!next.ok()) return std::move(next).TakeStatus().WithContext(StrCat(place, ": its redirect"));
  if (from.scheme == "https" && next->scheme != "https") {
    return InvalidArgument(
        StrCat(place, ": it redirects from https to http, ", PlaceOf(next->Text()), "; refused"));
  }
  if (NamesThisMachine(next->host) && !trusted_.contains(next->host) && !last_is_here_) {
    return InvalidArgument(
        StrCat(place, ": it redirects to this machine, ", PlaceOf(next->Text()), "; refused"));
  }
  if (std::find(seen->begin(), seen->end(), next->Text()) != seen->end()) {
    return InvalidArgument(StrCat(place, ": its redirects are a circle"));
  }
  seen->push_back(next->Text());
  if (seen->size() <= kMaxHops) return next;
  return InvalidArgument(StrCat(place, ": more than ", kMaxHops, " redirects"));
}

Status Fetcher::Exchange(const HttpRequest& request, const HttpSink& sink, HttpHead* head,
                         Status* answer) {
  std::size_t skipped = 0;
  const auto is_wanted = [&] { return !IsRedirect(head->status) && answer->ok(); };
  const auto take_head = [&](const HttpHead& got) {
    *head = got;
    if (!IsRedirect(got.status)) *answer = StatusOf(got.status, PlaceOf(request.url));
    return is_wanted() ? sink.on_head(got) : Status::Ok();
  };
  const auto take_bytes = [&](std::span<const std::byte> bytes) {
    if (is_wanted()) return sink.on_bytes(bytes);
    skipped += bytes.size();
    return skipped <= kMaxSkippedBytes ? Status::Ok() : Corrupt("too long");
  };
  Status status = client_.Get(request, {.on_head = take_head, .on_bytes = take_bytes});
  // The head says all, however the body ends that nobody reads.
  if (!status.ok() && status.code() != StatusCode::kCancelled && head->status != 0 &&
      !is_wanted()) {
    status = Status::Ok();
  }
  return status;
}

Result<std::string> Fetcher::Follow(const std::string& address, const Wanted& wanted) {
  KVCACHE_ASSIGN_OR_RETURN(Url url, ParseUrl(address));
  std::vector<std::string> seen = {url.Text()};
  last_is_here_ = wanted.from_this_machine;
  while (true) {
    HttpRequest request{.url = url.Text(),
                        .headers = wanted.headers,
                        .may_reach_this_machine = last_is_here_ || trusted_.contains(url.host)};
    if (wanted.end != Clock::time_point()) {
      const auto left = std::chrono::ceil<std::chrono::seconds>(wanted.end - Clock::now()).count();
      if (left <= 0) {
        return Status(StatusCode::kIo, StrCat(PlaceOf(url.Text()), ": there is no answer after ",
                                              max_seconds_, " s"));
      }
      request.max_seconds = static_cast<int>(left);
    }
    const std::string token = TokenFor(url);
    if (!token.empty()) request.headers.emplace_back("Authorization", StrCat("Bearer ", token));
    HttpHead head;
    Status status{};  // of the answer
    last_status_ = 0;
    const Status exchanged = Exchange(request, wanted.sink, &head, &status);
    last_status_ = head.status;
    KVCACHE_RETURN_IF_ERROR(exchanged);
    last_is_here_ = head.from_this_machine || NamesThisMachine(url.host);
    if (last_is_here_) trusted_.insert(url.host);  // it was reached as the rules allow
    if (!IsRedirect(head.status)) {
      last_ = url;
      const std::string challenge = head.Header("www-authenticate");
      if (head.status == 401 && NamesRealm(challenge)) return challenge;
      if (!status.ok()) return status;
      return std::string();
    }
    KVCACHE_ASSIGN_OR_RETURN(url, Redirected(url, head, &seen));
  }
}

Status Fetcher::TakeToken(const Url& asker, const std::string& challenge, const Wanted& wanted) {
  const std::string place = PlaceOf(asker.Text());
  auto realm = ParseUrl(ParameterOf(challenge, "realm"));
  if (!realm.ok()) {
    return std::move(realm).TakeStatus().WithContext(StrCat(place, ": its realm for tokens"));
  }
  if (asker.scheme == "https" && realm->scheme != "https") {
    return InvalidArgument(StrCat(place, ": its realm for tokens is not https; refused"));
  }
  if (NamesThisMachine(realm->host) && !trusted_.contains(realm->host) && !last_is_here_) {
    return InvalidArgument(StrCat(place, ": its realm for tokens is this machine, ",
                                  PlaceOf(realm->Text()), "; refused"));
  }
  std::string url = realm->Text();
  for (const char* name : {"service", "scope"}) {
    const std::string value = ParameterOf(challenge, name);
    if (value.empty()) continue;
    url += StrCat(url.find('?') == std::string::npos ? "?" : "&", name, "=", EscapedPath(value));
  }
  std::string text;
  const auto take = [&](std::span<const std::byte> bytes) {
    text.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    return text.size() <= kMaxTokenBytes ? Status::Ok() : Corrupt("the token is too long");
  };
  const HttpSink sink{.on_head = [](const HttpHead&) { return Status::Ok(); }, .on_bytes = take};
  const Headers no_headers;
  const auto end = wanted.end != Clock::time_point()
                       ? wanted.end
                       : Clock::now() + std::chrono::seconds(max_seconds_);
  KVCACHE_ASSIGN_OR_RETURN(
      const std::string again,
      Follow(
          url,
          {.headers = no_headers, .sink = sink, .end = end, .from_this_machine = last_is_here_}));
  if (!again.empty()) return Unsupported(StrCat(PlaceOf(url), ": it asks for a token itself"));
  const auto answer = ParseBoundedJson(text, kMaxTokenBytes);
  for (const char* name : {"token", "access_token"}) {
    if (!answer.ok() || !answer->is_object() || !answer->contains(name)) continue;
    const auto& token = (*answer)[name];
    if (!token.is_string()) continue;
    const std::string value = token.get<std::string>();
    const auto is_bad = [](char c) { return c <= ' ' || c >= '\x7f'; };
    if (std::any_of(value.begin(), value.end(), is_bad)) continue;
    UseToken(asker.host, value);
    return Status::Ok();
  }
  return Corrupt(StrCat(PlaceOf(url), ": its answer has no token"));
}

Status Fetcher::Get(const std::string& url, const Headers& headers, const HttpSink& sink) {
  return GetUntil(url, {.headers = headers, .sink = sink});
}

Status Fetcher::GetUntil(const std::string& url, const Wanted& wanted) {
  KVCACHE_ASSIGN_OR_RETURN(std::string challenge, Follow(url, wanted));
  if (challenge.empty()) return Status::Ok();
  const Url asker = last_;
  Status taken = TakeToken(asker, challenge, wanted);
  last_ = asker;  // and not the server of tokens
  KVCACHE_RETURN_IF_ERROR(std::move(taken));
  KVCACHE_ASSIGN_OR_RETURN(challenge, Follow(url, wanted));
  if (challenge.empty()) return Status::Ok();
  return Unsupported(StrCat(PlaceOf(url), ": the server refuses its own token (401)"));
}

Result<std::string> Fetcher::GetText(const std::string& url, const Headers& headers,
                                     std::size_t max_bytes) {
  std::string text;
  const auto take = [&](std::span<const std::byte> bytes) {
    text.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    if (text.size() <= max_bytes) return Status::Ok();
    return Corrupt(StrCat(PlaceOf(url), ": the answer has more than ", max_bytes, " bytes"));
  };
  const HttpSink sink{.on_head = [](const HttpHead&) { return Status::Ok(); }, .on_bytes = take};
  KVCACHE_RETURN_IF_ERROR(
      GetUntil(url, {.headers = headers,
                     .sink = sink,
                     .end = Clock::now() + std::chrono::seconds(max_seconds_)}));
  return text;
}

}  // namespace kvcache::pull
