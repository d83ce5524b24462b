#include "server/text_service.h"

#include <algorithm>
#include <ctime>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#include "base/strings.h"
#include "chat_template/chat_format.h"
#include "engine/stop_strings.h"
#include "tokenizer/unicode/utf8_stream.h"

namespace kvcache::server {
namespace {

constexpr std::size_t kMostRestorePoints = 4;

std::tm LocalTime() {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  (void)localtime_r(&now, &local);
  return local;
}

// Returns whether decoding drops a space in front of `token` after `before`, a special token.
bool DropsSpace(const Tokenizer& tokenizer, std::int32_t before, std::int32_t token) {
  if (!tokenizer.vocabulary().Has(before)) return false;
  const TokenKind kind = tokenizer.vocabulary().kind(before);
  if (kind == TokenKind::kNormal || kind == TokenKind::kByte) return false;
  const std::int32_t both[] = {before, token};
  const auto stripped = tokenizer.Decode(both);
  const auto kept = tokenizer.Decode(both, {.leading_space = LeadingSpace::kKeep});
  return stripped.ok() && kept.ok() && stripped->size() < kept->size();
}

// Turns the tokens of one request into text.
class Writer {
 public:
  Writer(const Tokenizer& tokenizer, TextRequest request)
      : tokenizer_(tokenizer),
        on_text_(std::move(request.on_text)),
        on_done_(std::move(request.on_done)),
        stops_(Joined(std::move(request.stop), request.prompt.stops)),
        before_(request.prompt.chat ? request.prompt.tokens.back() : -1) {}

  // Returns whether the text goes on. Without memory for it, it ends with an error.
  bool Push(std::int32_t token) {
    try {
      return Take(token);
    } catch (const std::exception&) {
      failed_ = true;
      return false;
    }
  }

  // Without memory for the answer there is none: the connection says so.
  void Finish(const RequestResult& result) {
    try {
      Deliver(result);
    } catch (const std::exception&) {
      return;
    }
  }

 private:
  bool Take(std::int32_t token) {
    std::string piece;
    tokenizer_.AppendPiece(token, &piece);
    const bool drops = ++generated_ == 1 && before_ >= 0 && piece.starts_with(' ') &&
                       DropsSpace(tokenizer_, before_, token);
    if (drops) piece.erase(0, 1);
    std::string whole;
    characters_.Push(piece, &whole);
    Emit(stops_.Push(whole));
    return !stops_.stopped();
  }

  void Deliver(const RequestResult& result) {
    Status status = result.status;
    if (failed_) status = {StatusCode::kOutOfMemory, "no memory for the text of an answer"};
    if (!stops_.stopped() && status.ok()) {
      std::string whole;
      characters_.Flush(&whole);
      Emit(stops_.Push(whole));
      Emit(stops_.Flush());
    }
    on_done_({.status = std::move(status),
              .stop = stops_.stopped() ? StopReason::kStopString : result.stop,
              .generated = generated_,
              .reuse = result.reuse,
              .first_token_ms = result.first_token_ms,
              .total_ms = result.total_ms});
  }

  static std::vector<std::string> Joined(std::vector<std::string> a,
                                         const std::vector<std::string>& b) {
    a.insert(a.end(), b.begin(), b.end());
    return a;
  }
  void Emit(const std::string& text) {
    if (!text.empty() && on_text_) on_text_(text);
  }

  const Tokenizer& tokenizer_;
  std::function<void(std::string_view)> on_text_;
  std::function<void(const TextResult&)> on_done_;
  StopStrings stops_;
  Utf8Stream characters_;
  std::int32_t before_;
  std::int32_t generated_ = 0;
  bool failed_ = false;
};

class Service final : public TextService {
 public:
  Service(Engine& engine, std::unique_ptr<Scheduler> scheduler, ChatFormat format,
          std::int64_t most_running)
      : engine_(engine),
        scheduler_(std::move(scheduler)),
        format_(std::move(format)),
        most_running_(most_running),
        started_(LocalTime()),
        thread_([this] { Run(); }) {}

  ~Service() override {
    ending_ = true;
    Interrupt();
    thread_.join();
  }

  Result<Prompt> Render(ChatInput input) const override {
    input.now = started_;
    KVCACHE_ASSIGN_OR_RETURN(ChatPrompt written, format_.Write(std::move(input)));
    Prompt prompt{
        .tokens = std::move(written.marked.tokens), .stops = format_.Stops(), .chat = true};
    for (const TokenAnchor& anchor : written.marked.anchors) {
      const auto index = static_cast<Position>(anchor.index);
      const Position last = prompt.restore_points.empty() ? 0 : prompt.restore_points.back();
      if (index > last && anchor.index < prompt.tokens.size()) {
        prompt.restore_points.push_back(index);
      }
    }
    const std::size_t points = prompt.restore_points.size();
    prompt.restore_points.erase(
        prompt.restore_points.begin(),
        prompt.restore_points.begin() +
            static_cast<std::ptrdiff_t>(points - std::min(points, kMostRestorePoints)));
    return prompt;
  }

  Result<Prompt> Encode(std::string_view text) const override {
    KVCACHE_ASSIGN_OR_RETURN(auto tokens, engine_.Tokenize(text));
    return Prompt{.tokens = std::move(tokens)};
  }

  Result<RequestId> Submit(TextRequest request) override {
    if (running_ >= most_running_) {
      return Status(StatusCode::kCacheFull,
                    StrCat(most_running_, " requests are running or waiting; try again later"));
    }
    // A full context would be shifted; an answer ends there instead.
    const auto room = static_cast<std::int32_t>(
        engine_.context() -
        std::min<std::int64_t>(engine_.context(), std::ssize(request.prompt.tokens)));
    ScheduledRequest scheduled{
        .prompt = request.prompt.tokens,
        .sampling = request.sampling,
        .max_tokens = request.max_tokens < 0 ? room : std::min(room, request.max_tokens),
        .restore_points = request.prompt.restore_points};
    const auto writer = std::make_shared<Writer>(engine_.tokenizer(), std::move(request));
    scheduled.on_token = [this, writer](std::int32_t token) {
      ++generated_tokens_;
      return writer->Push(token);
    };
    scheduled.on_done = [this, writer](const RequestResult& result) {
      --running_;
      reused_tokens_ += result.reuse.restored;
      computed_tokens_ += result.reuse.computed;
      writer->Finish(result);
    };
    ++running_;
    auto id = scheduler_->Submit(std::move(scheduled));
    if (id.ok()) {
      ++requests_;
    } else {
      --running_;
    }
    return id;
  }

  void Cancel(RequestId request) override { scheduler_->Cancel(request); }

  void Probe(std::vector<std::int32_t> prompt,
             std::function<void(Result<PrefixMatch>)> done) override {
    const std::lock_guard lock(mutex_);
    tasks_.push_back([this, prompt = std::move(prompt), done = std::move(done)] {
      done(scheduler_->Probe(prompt, 0));
    });
    Interrupt();
  }

  ServiceCounters counters() const override {
    return {.requests = requests_,
            .running = running_,
            .generated_tokens = generated_tokens_,
            .reused_tokens = reused_tokens_,
            .computed_tokens = computed_tokens_};
  }
  const Engine& engine() const override { return engine_; }

 private:
  void Interrupt() {
    interrupted_ = true;
    scheduler_->Wake();
  }

  void Run() {
    while (!ending_) {
      interrupted_ = false;
      for (const auto& task : TakeTasks()) task();
      if (ending_) return;
      (void)scheduler_->Run(interrupted_);
    }
  }

  std::vector<std::function<void()>> TakeTasks() {
    const std::lock_guard lock(mutex_);
    return std::exchange(tasks_, {});
  }

  Engine& engine_;
  std::unique_ptr<Scheduler> scheduler_;
  ChatFormat format_;
  const std::int64_t most_running_;
  const std::tm started_;  // one time for all prompts: they share their beginnings
  std::mutex mutex_;
  std::vector<std::function<void()>> tasks_;  // for the engine's thread
  std::atomic<bool> ending_{false}, interrupted_{false};
  std::atomic<std::int64_t> requests_{0}, running_{0};
  std::atomic<std::int64_t> generated_tokens_{0}, reused_tokens_{0}, computed_tokens_{0};
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace

Result<std::unique_ptr<TextService>> TextService::Make(Engine& engine, std::int64_t most_running) {
  KVCACHE_ASSIGN_OR_RETURN(auto format,
                           ChatFormat::ForModel(engine.file(), engine.tokenizer(), ToolUse::kNone));
  KVCACHE_ASSIGN_OR_RETURN(auto scheduler, Scheduler::Make(engine, {}));
  return std::unique_ptr<TextService>(
      new Service(engine, std::move(scheduler), std::move(format), most_running));
}

}  // namespace kvcache::server
