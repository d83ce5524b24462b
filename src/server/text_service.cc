#include "server/text_service.h"

#include <algorithm>
#include <cmath>
#include <ctime>
#include <exception>
#include <mutex>
#include <numeric>
#include <span>
#include <thread>
#include <utility>

#include "base/strings.h"
#include "chat_template/chat_format.h"
#include "engine/stop_strings.h"
#include "server/pin_book.h"
#include "server/tools.h"
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

bool EndsInThoughts(std::string_view prompt) {
  const std::size_t end = prompt.find_last_not_of(" \r\n\t") + 1;
  return prompt.substr(0, end).ends_with("<think>");
}

// Returns the logarithm of the sum of the logits' exponentials.
double LogSum(std::span<const float> logits) {
  const float most = *std::max_element(logits.begin(), logits.end());
  double sum = 0.0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - most);
  return most + std::log(sum);
}

// Turns the tokens of one request into text.
class Writer {
 public:
  Writer(const Tokenizer& tokenizer, TextRequest request)
      : tokenizer_(tokenizer),
        on_started_(std::move(request.on_started)),
        on_logprob_(std::move(request.on_logprob)),
        top_logprobs_(static_cast<std::size_t>(std::max(request.top_logprobs, 0))),
        on_text_(std::move(request.on_text)),
        on_done_(std::move(request.on_done)),
        model_stops_(request.prompt.stops),
        stops_(Joined(std::move(request.stop), model_stops_)),
        before_(request.prompt.chat ? request.prompt.tokens.back() : -1) {}

  void Started(const ReuseReport& reuse) {
    try {
      if (on_started_) on_started_(reuse);
    } catch (const std::exception&) {
      failed_ = true;
    }
  }

  // Takes what the next token is drawn from.
  void TakeLogits(std::span<const float> logits) {
    try {
      logits_.assign(logits.begin(), logits.end());
    } catch (const std::exception&) {
      failed_ = true;
    }
  }

  // Returns whether the text goes on. Without memory for it, it ends with an error.
  bool Push(std::int32_t token) {
    if (failed_) return false;
    try {
      return Take(token);
    } catch (const std::exception&) {
      failed_ = true;
      return false;
    }
  }

  // Without memory for the answer there is none: the connection says so.
  // `interrupted` is the error of a request that was cancelled; Ok: it just ends.
  void Finish(const RequestResult& result, const Status& interrupted) {
    try {
      const bool cancelled = result.stop == StopReason::kInterrupted && !refused_;
      Deliver(result, cancelled && result.status.ok() ? interrupted : result.status);
    } catch (const std::exception&) {
      return;
    }
  }

 private:
  bool Take(std::int32_t token) {
    if (!logits_.empty()) on_logprob_(LogprobOf(token));
    std::string piece;
    tokenizer_.AppendPiece(token, &piece);
    const bool drops = ++generated_ == 1 && before_ >= 0 && piece.starts_with(' ') &&
                       DropsSpace(tokenizer_, before_, token);
    if (drops) piece.erase(0, 1);
    std::string whole;
    characters_.Push(piece, &whole);
    Emit(stops_.Push(whole));
    return !stops_.stopped() && !refused_;
  }

  TokenLogprob LogprobOf(std::int32_t token) const {
    const double sum = LogSum(logits_);
    const auto logprob = [&](std::size_t index) {
      return static_cast<float>(static_cast<double>(logits_[index]) - sum);
    };
    const auto text = [&](std::size_t index) {
      return tokenizer_.Piece(static_cast<std::int32_t>(index), ControlText::kShown);
    };
    const auto own = static_cast<std::size_t>(token);
    TokenLogprob result{.text = text(own), .logprob = logprob(own)};
    std::vector<std::size_t> order(logits_.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    const std::size_t top = std::min(top_logprobs_, order.size());
    std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(top), order.end(),
                      [&](std::size_t a, std::size_t b) {
                        return std::pair(logits_[b], a) < std::pair(logits_[a], b);
                      });
    for (std::size_t i = 0; i < top; ++i) {
      result.top.emplace_back(text(order[i]), logprob(order[i]));
    }
    return result;
  }

  void Deliver(const RequestResult& result, Status status) {
    if (failed_) status = {StatusCode::kOutOfMemory, "no memory for the text of an answer"};
    if (!stops_.stopped() && !refused_ && status.ok()) {
      std::string whole;
      characters_.Flush(&whole);
      Emit(stops_.Push(whole));
      Emit(stops_.Flush());
    }
    const bool stopped = stops_.stopped() || refused_;
    on_done_({.status = std::move(status),
              .stop = stopped ? StopReason::kStopString : result.stop,
              .stop_string = IsOfModel(stops_.found()) ? std::string() : stops_.found(),
              .generated = generated_,
              .reuse = result.reuse,
              .first_token_ms = result.first_token_ms,
              .total_ms = result.total_ms});
  }

  bool IsOfModel(const std::string& stop) const {
    return std::find(model_stops_.begin(), model_stops_.end(), stop) != model_stops_.end();
  }
  static std::vector<std::string> Joined(std::vector<std::string> a,
                                         const std::vector<std::string>& b) {
    a.insert(a.end(), b.begin(), b.end());
    return a;
  }
  void Emit(const std::string& text) {
    if (!text.empty() && !refused_ && on_text_) refused_ = !on_text_(text);
  }

  const Tokenizer& tokenizer_;
  std::function<void(const ReuseReport&)> on_started_;
  std::function<void(TokenLogprob)> on_logprob_;
  std::size_t top_logprobs_;
  std::vector<float> logits_;  // that the next token is drawn from, if they are wanted
  std::function<bool(std::string_view)> on_text_;
  std::function<void(const TextResult&)> on_done_;
  std::vector<std::string> model_stops_;
  StopStrings stops_;
  Utf8Stream characters_;
  std::int32_t before_;
  std::int32_t generated_ = 0;
  bool failed_ = false;
  bool refused_ = false;  // the reader wants no more
};

class Service final : public TextService {
 public:
  Service(Engine& engine, std::unique_ptr<Scheduler> scheduler, ChatFormat format,
          ChatFormat tool_format, std::int64_t most_running)
      : engine_(engine),
        scheduler_(std::move(scheduler)),
        format_(std::move(format)),
        tool_format_(std::move(tool_format)),
        calls_(CallSyntaxOf(tool_format_)),
        reasons_(format_.Writes("</think>")),
        most_running_(most_running),
        started_(LocalTime()),
        pins_(scheduler_->prefixes(), most_pinned()),
        thread_([this] { Run(); }) {}

  ~Service() override {
    ending_ = true;
    Interrupt();
    thread_.join();
  }

  Result<Prompt> Render(ChatInput input) const override {
    AnswerSyntax answer{.reasoning = reasons_, .calls = SyntaxFor(input)};
    for (const Json& tool : input.tools) answer.tools.push_back(tool["function"]["name"]);
    KVCACHE_ASSIGN_OR_RETURN(ChatPrompt written, Write(std::move(input)));
    answer.opens_reasoning = reasons_ && EndsInThoughts(written.text);
    Prompt prompt{.tokens = std::move(written.marked.tokens),
                  .stops = format_.Stops(),
                  .answer = std::move(answer),
                  .chat = true};
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

  Result<std::string> RenderText(ChatInput input) const override {
    KVCACHE_ASSIGN_OR_RETURN(ChatPrompt written, Write(std::move(input)));
    return std::move(written.text);
  }

  CallSyntax calls() const override { return calls_; }
  bool reasons() const override { return reasons_; }

  Result<Prompt> Encode(std::string_view text) const override {
    KVCACHE_ASSIGN_OR_RETURN(auto tokens, engine_.Tokenize(text));
    return Prompt{.tokens = std::move(tokens)};
  }

  Result<std::vector<RequestId>> Submit(std::vector<TextRequest> requests) override {
    if (stopping_) return Stopping();
    const auto count = static_cast<std::int64_t>(requests.size());
    std::vector<RequestId> ids;
    ids.reserve(requests.size());
    // All take their places before the first begins: it may end before the last is submitted.
    if (running_.fetch_add(count) + count > most_running_) {
      running_ -= count;
      return Status(StatusCode::kCacheFull,
                    StrCat(most_running_, " requests are running or waiting; try again later"));
    }
    Places unused{running_, count};  // also if memory runs out
    for (TextRequest& request : requests) {
      auto id = SubmitOne(std::move(request));
      if (!id.ok()) {
        for (const RequestId begun : ids) scheduler_->Cancel(begun);
        return std::move(id).TakeStatus();
      }
      --unused.count;
      ids.push_back(*id);
    }
    return ids;
  }

  void Cancel(RequestId request) override { scheduler_->Cancel(request); }

  void StopAccepting() override { stopping_ = true; }

  void EndAll() override {
    stopping_ = true;
    AddTask([this] {
      ending_all_ = true;
      for (const RequestState& state : scheduler_->Requests()) scheduler_->Cancel(state.id);
    });
  }

  void Probe(std::vector<std::int32_t> prompt,
             std::function<void(Result<PrefixMatch>)> done) override {
    AddTask([this, prompt = std::move(prompt), done = std::move(done)] {
      done(scheduler_->Probe(prompt, 0));
    });
  }

  void Look(std::function<void(const Scheduler&, std::int64_t)> look) override {
    AddTask([this, look = std::move(look)] { look(*scheduler_, engine_.cache().FreeCells()); });
  }

  std::string Piece(std::int32_t token) const override {
    return engine_.tokenizer().Piece(token, ControlText::kShown);
  }

  ServiceCounters counters() const override {
    const std::lock_guard lock(mutex_);
    return {.requests = requests_,
            .running = running_,
            .generated_tokens = generated_tokens_,
            .reused_tokens = reused_tokens_,
            .computed_tokens = computed_tokens_,
            .first_tokens = first_tokens_,
            .first_token_seconds = first_token_seconds_};
  }
  std::int64_t most_pinned() const override {
    const EngineOptions& options = engine_.options();
    const std::int64_t context = options.context;
    const std::int64_t pool =
        options.pool_tokens > 0 ? options.pool_tokens : options.max_sequences * context;
    return std::max<std::int64_t>(0, std::min(pool / 2, pool - context));
  }

  bool idle() const override { return unfinished_ == 0; }
  const Engine& engine() const override { return engine_; }

 private:
  // Gives places back at its end.
  struct Places {
    std::atomic<std::int64_t>& running;
    std::int64_t count;
    ~Places() { running -= count; }
  };

  struct PinnedPrompt {
    std::vector<std::int32_t> tokens{};
    std::vector<PromptPin> pins{};
  };

  // Begins a request that has its place in running_.
  Result<RequestId> SubmitOne(TextRequest request) {
    // A full context would be shifted; an answer ends there instead.
    const auto room = static_cast<std::int32_t>(
        engine_.context() -
        std::min<std::int64_t>(engine_.context(), std::ssize(request.prompt.tokens)));
    ScheduledRequest scheduled{
        .prompt = request.prompt.tokens,
        .sampling = request.sampling,
        .max_tokens = request.max_tokens < 0 ? room : std::min(room, request.max_tokens),
        .restore_points = request.prompt.restore_points};
    auto pins = std::make_shared<PinnedPrompt>();
    pins->pins = std::exchange(request.pins, {});
    if (!pins->pins.empty()) pins->tokens = request.prompt.tokens;
    const bool wants_logits = request.top_logprobs >= 0;
    const auto writer = std::make_shared<Writer>(engine_.tokenizer(), std::move(request));
    scheduled.on_started = [writer](const ReuseReport& reuse) { writer->Started(reuse); };
    if (wants_logits) {
      scheduled.on_logits = [writer](Position /*length*/, std::span<const float> logits) {
        writer->TakeLogits(logits);
      };
    }
    scheduled.on_token = [this, writer](std::int32_t token) {
      ++generated_tokens_;
      return writer->Push(token);
    };
    scheduled.on_done = [this, writer, pins = std::move(pins)](const RequestResult& result) {
      Keep(*pins, result);
      reused_tokens_ += result.reuse.restored;
      computed_tokens_ += result.reuse.computed;
      if (!result.tokens.empty()) CountFirstToken(result.first_token_ms / 1000.0);
      --running_;
      writer->Finish(result, ending_all_ ? Stopping() : Status::Ok());
      --unfinished_;
    };
    ++unfinished_;
    auto id = scheduler_->Submit(std::move(scheduled));
    if (id.ok()) {
      ++requests_;
    } else {
      --unfinished_;
    }
    return id;
  }

  void CountFirstToken(double seconds) {
    const auto bound =
        std::lower_bound(kFirstTokenBounds.begin(), kFirstTokenBounds.end(), seconds);
    const std::lock_guard lock(mutex_);
    ++first_tokens_[static_cast<std::size_t>(bound - kFirstTokenBounds.begin())];
    first_token_seconds_ += seconds;
  }

  // Pins what the request asks for. If the cache has no room for a request, nothing is pinned any more.
  void Keep(const PinnedPrompt& prompt, const RequestResult& result) {
    try {
      const double now = scheduler_->Now();
      if (result.status.code() == StatusCode::kCacheFull) pins_.Clear(now);
      for (const PromptPin& pin : prompt.pins) {
        const auto length = static_cast<std::size_t>(pin.length);
        if (result.status.ok()) {
          pins_.Pin(std::span(prompt.tokens).first(length), now + pin.seconds, now);
        }
      }
    } catch (const std::exception&) {
      return;  // without memory there are no pins
    }
  }

  static Status Stopping() { return {StatusCode::kCancelled, "the server is stopping"}; }

  CallSyntax SyntaxFor(const ChatInput& input) const {
    return input.tools.is_null() ? CallSyntax::kNone : calls_;
  }

  Result<ChatPrompt> Write(ChatInput input) const {
    input.now = started_;
    const ChatFormat& format = input.tools.is_null() ? format_ : tool_format_;
    return format.Write(std::move(input));
  }

  void AddTask(std::function<void()> task) {
    {
      const std::lock_guard lock(mutex_);
      tasks_.push_back(std::move(task));
    }
    Interrupt();
  }

  void Interrupt() {
    interrupted_ = true;
    scheduler_->Wake();
  }

  void Run() {
    while (!ending_) {
      interrupted_ = false;
      for (auto& task : TakeTasks()) Do(std::exchange(task, nullptr));
      if (ending_) return;
      (void)scheduler_->Run(interrupted_);
    }
  }

  // A task that runs out of memory is given up: its reply ends the request.
  static void Do(const std::function<void()>& task) {
    try {
      task();
    } catch (const std::exception&) {
      return;
    }
  }

  std::vector<std::function<void()>> TakeTasks() {
    const std::lock_guard lock(mutex_);
    return std::exchange(tasks_, {});
  }

  Engine& engine_;
  std::unique_ptr<Scheduler> scheduler_;
  ChatFormat format_;
  ChatFormat tool_format_;  // writes prompts with tools
  const CallSyntax calls_;
  const bool reasons_;
  const std::int64_t most_running_;
  const std::tm started_;  // one time for all prompts: they share their beginnings
  mutable std::mutex mutex_;
  std::vector<std::function<void()>> tasks_;  // for the engine's thread; guarded by mutex_
  std::array<std::int64_t, kFirstTokenBounds.size() + 1> first_tokens_{};  // guarded by mutex_
  double first_token_seconds_ = 0.0;                                       // guarded by mutex_
  PinBook pins_;                                                           // on the engine's thread
  std::atomic<bool> ending_{false}, interrupted_{false}, stopping_{false};
  bool ending_all_ = false;  // on the engine's thread
  std::atomic<std::int64_t> requests_{0}, running_{0}, unfinished_{0};
  std::atomic<std::int64_t> generated_tokens_{0}, reused_tokens_{0}, computed_tokens_{0};
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace

Result<std::unique_ptr<TextService>> TextService::Make(Engine& engine, std::int64_t most_running) {
  KVCACHE_ASSIGN_OR_RETURN(auto format,
                           ChatFormat::ForModel(engine.file(), engine.tokenizer(), ToolUse::kNone));
  KVCACHE_ASSIGN_OR_RETURN(
      auto tool_format, ChatFormat::ForModel(engine.file(), engine.tokenizer(), ToolUse::kTools));
  KVCACHE_ASSIGN_OR_RETURN(auto scheduler, Scheduler::Make(engine, {}));
  return std::unique_ptr<TextService>(new Service(engine, std::move(scheduler), std::move(format),
                                                  std::move(tool_format), most_running));
}

}  // namespace kvcache::server
