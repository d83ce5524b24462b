#include "server/request_log.h"

#include <algorithm>
#include <exception>
#include <iterator>
#include <utility>

#include "base/strings.h"
#include "json/json_text.h"
#include "server/request/fields.h"

namespace kvcache::server {
namespace {

constexpr std::size_t kMaxRouteBytes = 100;
constexpr std::size_t kMaxErrorBytes = 500;
constexpr std::size_t kMaxErrorBody = 65536;

std::string Shortened(std::string text, std::size_t max) {
  if (text.size() <= max) return text;
  text.resize(max);
  return text + " \xe2\x80\xa6";
}

// Returns the message in an error of any API.
std::string ErrorText(const std::string& body) {
  if (body.size() > kMaxErrorBody) return {};
  const auto json = ParseJson(body);
  if (!json.ok() || !json->is_object() || !json->contains("error")) return {};
  const Json& error = (*json)["error"];
  const Json message = error.is_object() ? error.value("message", Json()) : error;
  return message.is_string() ? message.get<std::string>() : std::string();
}

std::int64_t UnixMilliseconds() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

}  // namespace

std::string_view RequestPhaseName(RequestPhase phase) {
  switch (phase) {
    case RequestPhase::kQueued: return "queued";
    case RequestPhase::kPrompt: return "prompt";
    case RequestPhase::kGenerating: return "generating";
    case RequestPhase::kDone: return "done";
    case RequestPhase::kFailed: return "failed";
    case RequestPhase::kCancelled: return "cancelled";
  }
  return "";
}

void RequestEntry::UseModel(const std::string& name) {
  const std::lock_guard lock(mutex_);
  record_.model = name;
}

void RequestEntry::Start(const ReuseReport& reuse) {
  const std::lock_guard lock(mutex_);
  if (record_.running()) record_.phase = RequestPhase::kPrompt;
  record_.has_prompt = true;
  record_.reuse = reuse;
}

void RequestEntry::CountToken() {
  if (generated_.fetch_add(1) == 0) first_token_ = Seconds();
}

void RequestEntry::Finish(const TextResult& result) {
  const std::lock_guard lock(mutex_);
  record_.has_prompt = true;
  record_.reuse = result.reuse;
  record_.difference = result.difference;
  record_.stop = result.stop;
}

void RequestEntry::Answer(int status, std::string error) {
  const std::lock_guard lock(mutex_);
  if (!record_.running()) return;
  record_.status = status;
  if (status < 400) return;
  record_.error = Shortened(std::move(error), kMaxErrorBytes);
  EndAs(RequestPhase::kFailed);
}

void RequestEntry::Fail(const std::string& error) {
  const std::lock_guard lock(mutex_);
  if (!record_.running()) return;
  record_.error = Shortened(error, kMaxErrorBytes);
  EndAs(RequestPhase::kFailed);
}

void RequestEntry::End() {
  const std::lock_guard lock(mutex_);
  EndAs(RequestPhase::kDone);
}

void RequestEntry::Cancel() {
  const std::lock_guard lock(mutex_);
  EndAs(RequestPhase::kCancelled);
}

void RequestEntry::EndAs(RequestPhase phase) {
  if (!record_.running()) return;
  record_.phase = phase;
  record_.seconds = Seconds();
}

double RequestEntry::Seconds() const {
  return std::chrono::duration<double>(Clock::now() - began_).count();
}

RequestRecord RequestEntry::Get() const {
  const std::lock_guard lock(mutex_);
  RequestRecord record = record_;
  record.generated = generated_;
  record.first_token_seconds = first_token_;
  if (!record.running()) return record;
  record.seconds = Seconds();
  if (record.generated > 0) record.phase = RequestPhase::kGenerating;
  return record;
}

bool RequestEntry::running() const {
  const std::lock_guard lock(mutex_);
  return record_.running();
}

bool RequestEntry::dull() const {
  const std::lock_guard lock(mutex_);
  return record_.phase == RequestPhase::kDone && !record_.has_prompt;
}

std::shared_ptr<RequestEntry> RequestLog::Begin(std::string_view method, std::string_view path,
                                                const User& user) {
  const std::lock_guard lock(mutex_);
  auto entry = std::make_shared<RequestEntry>(
      RequestRecord{.number = ++count_,
                    .unix_ms = UnixMilliseconds(),
                    .route = Shortened(StrCat(method, " ", path), kMaxRouteBytes),
                    .user = user.name,
                    .salt = user.salt});
  entries_.push_back(entry);
  if (entries_.size() > kMaxRequests) entries_.pop_front();
  return entry;
}

void RequestLog::End(const std::shared_ptr<RequestEntry>& entry) {
  if (!entry->dull()) return;
  const std::lock_guard lock(mutex_);
  const auto found = std::find(entries_.rbegin(), entries_.rend(), entry);
  if (found != entries_.rend()) entries_.erase(std::next(found).base());
}

std::vector<RequestRecord> RequestLog::Last(const User& user, std::size_t max) const {
  std::vector<std::shared_ptr<RequestEntry>> entries;
  {
    const std::lock_guard lock(mutex_);
    entries.assign(entries_.rbegin(), entries_.rend());
  }
  std::vector<RequestRecord> records;
  std::size_t ended = 0;
  std::size_t running = 0;
  for (const auto& entry : entries) {
    std::size_t& count = entry->running() ? running : ended;
    if (count == max || !entry->IsShownTo(user)) continue;
    ++count;
    records.push_back(entry->Get());
  }
  std::reverse(records.begin(), records.end());
  return records;
}

RecordedReply::RecordedReply(std::shared_ptr<HttpReply> reply, RequestLog& log,
                             const HttpRequest& request, const User& user)
    : reply_(std::move(reply)), log_(log), entry_(log.Begin(request.method, request.path, user)) {
  try {
    OnGone([] {});
  } catch (const std::exception&) {
    entry_->Fail("");  // no destructor runs
    throw;
  }
}

// Without an end, the connection gives status 500 or breaks off.
RecordedReply::~RecordedReply() {
  try {
    entry_->Fail("the server gave no answer");
  } catch (const std::exception&) {
    return;  // without memory it has no message
  }
}

void RecordedReply::Send(int status, std::string body, HttpHeaders headers) {
  entry_->Answer(status, status < 400 ? std::string() : ErrorText(body));
  entry_->End();
  log_.End(entry_);
  reply_->Send(status, std::move(body), std::move(headers));
}

void RecordedReply::Begin(std::string content_type) {
  entry_->Answer(200, "");
  reply_->Begin(std::move(content_type));
}

void RecordedReply::Write(std::string bytes) {
  reply_->Write(std::move(bytes));
}

void RecordedReply::End() {
  entry_->End();
  log_.End(entry_);
  reply_->End();
}

void RecordedReply::OnGone(std::function<void()> gone) {
  reply_->OnGone([entry = entry_, gone = std::move(gone)] {
    entry->Cancel();
    gone();
  });
}

}  // namespace kvcache::server
