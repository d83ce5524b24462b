#include "server/models/text_service.h"

#include <algorithm>
#include <chrono>
#include <ctime>
#include <exception>
#include <mutex>
#include <span>
#include <thread>
#include <utility>

#include "base/strings.h"
#include "dialect/model_dialect.h"
#include "server/models/adapter_scales.h"
#include "server/models/picture_book.h"
#include "server/models/pin_book.h"
#include "server/output/text_writer.h"

namespace kvcache::server {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kMaxRestorePoints = 4;

std::tm LocalTime() {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  (void)localtime_r(&now, &local);
  return local;
}

class Service final : public TextService {
 public:
  Service(Engine& engine, std::unique_ptr<Scheduler> scheduler, ModelDialect dialect,
          std::int64_t max_running)
      : engine_(engine),
        scheduler_(std::move(scheduler)),
        dialect_(std::move(dialect)),
        max_running_(max_running),
        started_(LocalTime()),
        pins_(scheduler_->prefixes(), max_pinned()),
        thread_([this] { Run(); }) {}

  ~Service() override {
    ending_ = true;
    Interrupt();
    thread_.join();
  }

  Result<Prompt> Render(ChatInput input) const override {
    KVCACHE_ASSIGN_OR_RETURN(DialectPrompt own, Write(std::move(input)));
    ChatPrompt& written = own.written;
    std::string begun = written.open_text.empty() ? own.answer.begun : written.open_text;
    Prompt prompt{.tokens = std::move(written.marked.tokens),
                  .pictures = std::move(written.pictures),
                  .stops = dialect_.Stops(),
                  .answer = std::move(own.answer),
                  .begun = std::move(begun),
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
            static_cast<std::ptrdiff_t>(points - std::min(points, kMaxRestorePoints)));
    return prompt;
  }

  Result<std::string> RenderText(ChatInput input) const override {
    KVCACHE_ASSIGN_OR_RETURN(DialectPrompt own, Write(std::move(input)));
    return std::move(own.written.text);
  }

  const std::string& architecture() const override { return engine_.info().architecture; }
  std::int64_t context() const override { return engine_.context(); }

  const SharedDialect& dialect() const override { return dialect_.dialect(); }
  bool reasons() const override { return dialect_.reasons(); }

  Result<Prompt> Encode(std::string_view text) const override {
    KVCACHE_ASSIGN_OR_RETURN(const auto pieces, book_.Divide(text));
    PicturePrompt prompt;
    for (const TextBefore& piece : pieces) {
      const auto place = prompt.tokens.empty() ? TextPlace::kBeginning : TextPlace::kContinuation;
      KVCACHE_ASSIGN_OR_RETURN(const auto tokens, engine_.Tokenize(piece.text, place));
      prompt.tokens.insert(prompt.tokens.end(), tokens.begin(), tokens.end());
      if (piece.picture != nullptr) {
        KVCACHE_RETURN_IF_ERROR(engine_.AddPicture(piece.picture, prompt));
      }
    }
    return Prompt{.tokens = std::move(prompt.tokens), .pictures = std::move(prompt.pictures)};
  }

  Result<std::pair<PicturePtr, std::string>> TakePicture(std::span<const std::byte> file,
                                                         std::string_view name) override {
    KVCACHE_ASSIGN_OR_RETURN(PicturePtr picture, engine_.PreparePicture(file, name));
    std::string mark = book_.Add(picture);
    return std::pair(std::move(picture), std::move(mark));
  }

  Result<std::vector<RequestId>> Submit(std::vector<TextRequest> requests) override {
    if (stopping_) return Stopping();
    const auto count = static_cast<std::int64_t>(requests.size());
    std::vector<RequestId> ids;
    ids.reserve(requests.size());
    // All take their places before the first begins: it may end before the last is submitted.
    if (running_.fetch_add(count) + count > max_running_) {
      running_ -= count;
      return Status(StatusCode::kCacheFull,
                    StrCat(max_running_, " requests are running or waiting; try again later"));
    }
    Places unused{running_, count};  // also if memory runs out
    AnswerForm known;                // the form of the request before
    for (TextRequest& request : requests) {
      AnswerForm form = request.form;
      auto id = SubmitOne(std::move(request), form != known);
      known = std::move(form);
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

  void Probe(std::vector<std::int32_t> prompt, std::uint64_t salt,
             std::function<void(Result<PrefixMatch>)> done) override {
    AddTask([this, prompt = std::move(prompt), salt, done = std::move(done)] {
      done(scheduler_->Probe(prompt, salt));
    });
  }

  void View(std::function<void(const Scheduler&, std::int64_t)> view) override {
    AddTask([this, view = std::move(view)] {
      view(*scheduler_, engine_.cache().memory()->FreeCells());
    });
  }

  // Pins go if nothing else can. `done` is called on the engine's thread.
  void SetBudget(std::int64_t bytes, std::function<void()> done) override {
    AddTask([this, bytes, done = std::move(done)] {
      const bool releases = engine_.options().releases_memory;
      if (scheduler_->SetBudget(bytes) > bytes && bytes > 0 && releases) {
        pins_.Clear(scheduler_->Now());
        (void)scheduler_->SetBudget(bytes);
      }
      done();
    });
  }

  std::string Piece(std::int32_t token) const override {
    return engine_.tokenizer().Piece(token, ControlText::kShown);
  }

  ServiceCounters counters() const override {
    const SchedulerStats stats = scheduler_->Stats();
    const std::lock_guard lock(mutex_);
    ServiceCounters now = counters_;
    now.requests = requests_;
    now.generated_tokens = generated_tokens_;
    now.running = running_;
    now.evaluated_tokens = stats.evaluated_tokens;
    now.computed_tokens = stats.prompt_tokens;
    now.evicted_tokens = stats.evicted_tokens;
    now.parked = stats.parked;
    now.waiting = stats.waiting;
    now.held_bytes = stats.held_bytes;
    now.budget_bytes = stats.budget_bytes;
    now.prefix_tokens = stats.prefix_tokens;
    now.prefix_states = stats.prefix_states;
    return now;
  }

  std::int64_t max_pinned() const override {
    const EngineOptions& options = engine_.options();
    const std::int64_t context = options.context;
    const std::int64_t pool =
        options.pool_tokens > 0 ? options.pool_tokens : options.max_sequences * context;
    return std::max<std::int64_t>(0, std::min(pool / 2, pool - context));
  }

  bool idle() const override { return unfinished_ == 0; }
  const Engine& engine() const override { return engine_; }
  std::span<const AdapterInfo> adapters() const override { return engine_.adapters(); }

 private:
  // Writes a conversation in which marks stand for pictures.
  Result<DialectPrompt> Write(ChatInput input) const {
    input.now = started_;
    KVCACHE_RETURN_IF_ERROR(book_.PutInto(input));
    if (!input.pictures.empty()) input.picture_marks = engine_.picture_marks();
    return dialect_.Write(std::move(input));
  }

  // Gives places back at its end.
  struct Places {
    std::atomic<std::int64_t>& running;
    std::int64_t count;
    ~Places() { running -= count; }
  };

  // Returns what follows a request's form, or null. `is_new`: whether no request before had the form.
  Result<std::shared_ptr<FormConstraint>> Constrain(const TextRequest& request, bool is_new) {
    AnswerForm form = request.form;
    if (form == nullptr) return std::shared_ptr<FormConstraint>();
    std::call_once(table_made_, [this] { table_ = MakeTokenTable(engine_, *dialect()); });
    const AnswerSyntax& answer = request.prompt.answer;
    std::optional<Thoughts> thoughts;
    if (answer.may_reason) thoughts = Thoughts::kMayBegin;
    if (answer.opens_reasoning) thoughts = Thoughts::kBegun;
    // A prompt that ends inside of a text has what the dialect writes before it.
    const bool inside = dialect()->calls.form == CallForm::kChannels && !answer.reasoning;
    if (answer.dialect != nullptr && !inside) {
      KVCACHE_ASSIGN_OR_RETURN(form, forms_.Of(form, thoughts, *answer.dialect));
    }
    KVCACHE_ASSIGN_OR_RETURN(
        auto constraint, MakeConstraint(table_, *form, request.prompt.begun, dialect_.thoughts()));
    // So the error of a form that is too large at once is a status, before a stream begins.
    if (is_new) KVCACHE_RETURN_IF_ERROR(constraint->FindFirst());
    return constraint;
  }

  // Begins a request that has its place in running_. `is_new`: as of Constrain.
  Result<RequestId> SubmitOne(TextRequest request, bool is_new) {
    // A full context would be shifted; an answer ends there instead.
    const auto room = static_cast<std::int32_t>(
        engine_.context() -
        std::min<std::int64_t>(engine_.context(), std::ssize(request.prompt.tokens)));
    ScheduledRequest scheduled{
        .prompt = request.prompt.tokens,
        .pictures = request.prompt.pictures,
        .sampling = request.sampling,
        .max_tokens = request.max_tokens < 0 ? room : std::min(room, request.max_tokens),
        .salt = request.salt,
        .restore_points = request.prompt.restore_points};
    KVCACHE_ASSIGN_OR_RETURN(scheduled.adapters, engine_.NormalAdapters(request.adapters));
    const std::uint64_t salt = engine_.SaltOf(request.salt, scheduled.adapters);
    KVCACHE_ASSIGN_OR_RETURN(const std::shared_ptr<FormConstraint> constraint,
                             Constrain(request, is_new));
    scheduled.constraint = constraint;
    const auto writer = std::make_shared<TextWriter>(engine_.tokenizer(), std::move(request));
    scheduled.on_started = [writer](const ReuseReport& reuse) { writer->Started(reuse); };
    if (writer->request().top_logprobs >= 0) {
      scheduled.on_logits = [writer](Position /*length*/, std::span<const float> logits) {
        writer->TakeLogits(logits);
      };
    }
    scheduled.on_token = [this, writer, last = Clock::time_point()](std::int32_t token) mutable {
      ++generated_tokens_;
      const auto now = Clock::now();
      if (last != Clock::time_point()) CountBetween(now - last);
      last = now;
      return writer->Push(token);
    };
    scheduled.on_done = [this, writer, constraint, salt](const RequestResult& result) {
      Keep(writer->request(), salt, result);
      Count(result);
      --running_;
      writer->Finish(Explained(result, constraint.get()),
                     DifferenceOf(writer->request().prompt, result),
                     ending_all_ ? Stopping() : Status::Ok());
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

  // The scheduler does not know why a form allows no token.
  static RequestResult Explained(const RequestResult& result, const FormConstraint* constraint) {
    RequestResult explained = result;
    if (constraint == nullptr || result.status.ok()) return explained;
    if (Status reason = constraint->TooLarge(); !reason.ok()) explained.status = std::move(reason);
    return explained;
  }

  void Count(const RequestResult& result) {
    const ReuseReport& reuse = result.reuse;
    const std::lock_guard lock(mutex_);
    counters_.reused_tokens += reuse.restored;
    for (std::size_t i = 0; i < reuse.tiers.size(); ++i) {
      counters_.reused_by_tier[i] += reuse.tiers[i];
    }
    for (const PrefixMiss& miss : reuse.missed) {
      counters_.missed_tokens[static_cast<std::size_t>(miss.reason)] += miss.tokens;
    }
    ++counters_.ended[result.status.ok() ? static_cast<std::size_t>(result.stop) : kFailedEnd];
    if (!result.tokens.empty()) counters_.first_token.Add(result.first_token_ms / 1000.0);
    counters_.request.Add(result.total_ms / 1000.0);
  }

  void CountBetween(Clock::duration time) {
    const std::lock_guard lock(mutex_);
    counters_.between_tokens.Add(std::chrono::duration<double>(time).count());
  }

  // Pins what the request asks for. If the cache has no room for a request, nothing is pinned any more.
  void Keep(const TextRequest& request, std::uint64_t salt, const RequestResult& result) {
    try {
      const double now = scheduler_->Now();
      if (result.status.code() == StatusCode::kCacheFull) pins_.Clear(now);
      for (const PromptPin& pin : request.pins) {
        const auto length = static_cast<std::size_t>(pin.length);
        if (result.status.ok()) {
          pins_.Pin(std::span(request.prompt.tokens).first(length), now + pin.seconds, now, salt);
        }
      }
    } catch (const std::exception&) {
      return;  // without memory there are no pins
    }
  }

  // A prompt of which all is new has no line that differs.
  PromptDifference DifferenceOf(const Prompt& prompt, const RequestResult& result) const {
    const std::vector<PrefixMiss>& missed = result.reuse.missed;
    const bool differs = std::any_of(missed.begin(), missed.end(), [](const PrefixMiss& miss) {
      return miss.reason == MissReason::kDiffers;
    });
    if (!differs || result.reuse.difference.position < 0) return {};
    try {
      return LineAt(engine_, prompt.tokens, result.reuse.difference);
    } catch (const std::exception&) {
      return {};
    }
  }

  static Status Stopping() { return {StatusCode::kCancelled, "the server is stopping"}; }

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
  const ModelDialect dialect_;
  const std::int64_t max_running_;
  const std::tm started_;  // one time for all prompts: they share their beginnings
  mutable std::mutex mutex_;
  std::vector<std::function<void()>> tasks_;  // for the engine's thread; guarded by mutex_
  ServiceCounters counters_;                  // of what ended; guarded by mutex_
  std::once_flag table_made_;
  std::shared_ptr<const TokenTable> table_;  // of the vocabulary's texts
  FramedForms forms_;
  PictureBook book_;
  PinBook pins_;  // on the engine's thread
  std::atomic<bool> ending_{false}, interrupted_{false}, stopping_{false};
  bool ending_all_ = false;  // on the engine's thread
  std::atomic<std::int64_t> requests_{0}, running_{0}, unfinished_{0};
  std::atomic<std::int64_t> generated_tokens_{0};
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace

Result<std::unique_ptr<TextService>> TextService::Make(Engine& engine, std::int64_t max_running,
                                                       SchedulerOptions options,
                                                       const std::string& chat_template,
                                                       const std::string& dialect) {
  const auto make_format = [&](ToolUse tools) {
    return chat_template.empty()
               ? ChatFormat::ForModel(engine.file(), engine.tokenizer(), tools)
               : ChatFormat::FromSource(chat_template, "the model's TEMPLATE", engine.tokenizer());
  };
  KVCACHE_ASSIGN_OR_RETURN(ModelDialect own,
                           ModelDialect::Make(make_format, engine.tokenizer(), dialect));
  options.use_engine_drafts = true;
  KVCACHE_ASSIGN_OR_RETURN(auto scheduler, Scheduler::Make(engine, options));
  std::unique_ptr<TextService> service =
      std::make_unique<Service>(engine, std::move(scheduler), std::move(own), max_running);
  service->ShareScales(std::make_shared<AdapterScales>(engine.adapters()));
  return service;
}

}  // namespace kvcache::server
