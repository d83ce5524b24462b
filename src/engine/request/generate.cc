#include "kvcache_engine/generate.h"

#include <chrono>
#include <exception>
#include <memory>
#include <new>
#include <utility>

#include "base/errors.h"
#include "base/seconds_since.h"
#include "engine/engine_impl.h"
#include "engine/request/shown_tokens.h"
#include "engine/request/text_stream.h"

namespace kvcache {
namespace {

using Clock = std::chrono::steady_clock;

// Writes the text of one request, as its functions are called. What they throw ends the request and is thrown again.
class Answer : public std::enable_shared_from_this<Answer> {
 public:
  Answer(const Engine& engine, const GenerateRequest& request, const ShownTokens& shown)
      : request_(request), text_(engine.tokenizer(), request.stop) {
    text_.Show(shown.tokens, shown.edge);
  }

  ScheduledRequest Scheduled() {
    ScheduledRequest scheduled{.prompt = request_.prompt,
                               .pictures = request_.pictures,
                               .sampling = request_.sampling,
                               .max_tokens = request_.max_tokens,
                               .evaluates_last = true,
                               .adapters = request_.adapters,
                               .restore_points = request_.restore_points,
                               .draft_tokens = request_.draft_tokens,
                               .interrupt = request_.interrupt};
    if (request_.drafter != nullptr) {
      scheduled.drafter = std::shared_ptr<Drafter>(std::shared_ptr<void>(), request_.drafter);
    }
    // The scheduler may have the request when the call is over: if a step throws.
    const auto self = shared_from_this();
    scheduled.on_prefill = [self](Position evaluated) {
      self->Call([&] { self->Read(evaluated); });
    };
    scheduled.on_token = [self](std::int32_t token) {
      bool continues = false;
      self->Call([&] { continues = self->Take(token); });
      return continues;
    };
    if (request_.on_logits) {
      scheduled.on_logits = [self](Position length, std::span<const float> logits) {
        self->Call([&] { self->request_.on_logits(length, logits); });
      };
    }
    scheduled.on_done = [self](const RequestResult& ended) {
      self->Call([&] { self->End(ended); });
    };
    return scheduled;
  }

  bool done() const { return done_; }
  // Nothing of the request is used any more.
  void Leave() { left_ = true; }
  Result<GenerateResult> TakeResult() {
    if (thrown_ != nullptr) std::rethrow_exception(thrown_);
    if (!ended_.status.ok()) return ended_.status;
    return std::move(result_);
  }

 private:
  template <class Function>
  void Call(const Function& function) {
    if (left_) return;
    try {
      function();
    } catch (const std::bad_alloc&) {  // an error of the request: a status
      throw;
    } catch (...) {
      if (thrown_ == nullptr) thrown_ = std::current_exception();
      throw;
    }
  }

  void Read(Position evaluated) {
    read_ = evaluated;
    read_ms_ = MillisecondsSince(start_);
    if (request_.on_prefill) request_.on_prefill(evaluated);
  }

  // Returns whether the text continues.
  bool Take(std::int32_t token) {
    if (first_ == Clock::time_point()) first_ = Clock::now();
    Show(text_.Push(token));
    if (refused_ || text_.stopped()) return false;
    return request_.interrupt == nullptr || !request_.interrupt->load(std::memory_order_relaxed);
  }

  void Show(const std::string& text) {
    if (text.empty() || refused_) return;
    result_.text += text;
    refused_ = request_.on_text && !request_.on_text(text);
  }

  void End(const RequestResult& ended) {
    done_ = true;
    ended_ = ended;
    const bool ends_itself = !text_.stopped() && !refused_ && thrown_ == nullptr;
    if (ends_itself && ended.status.ok()) Show(text_.Finish());
    const ReuseReport& reuse = ended.reuse;
    result_.tokens = ended.tokens;
    result_.stop = ended.stop;
    if (text_.stopped()) result_.stop = StopReason::kStopString;
    if (refused_) result_.stop = StopReason::kInterrupted;
    result_.prompt_tokens = reuse.prompt;
    result_.computed_tokens = std::max<Position>(read_ - reuse.restored, 0);
    result_.shifts = ended.shifts;
    result_.prefill_ms = std::max(read_ms_ - reuse.store_ms - reuse.restore_ms, 0.0);
    result_.first_token_ms = ended.first_token_ms;
    result_.decode_ms = first_ == Clock::time_point() ? 0.0 : MillisecondsSince(first_);
    result_.decode_passes = ended.decode_passes;
    result_.decoded_tokens = ended.decoded_tokens;
    result_.evaluated = ended.evaluated;
    result_.speculation = ended.speculation;
    result_.reuse = reuse;
  }

  const GenerateRequest& request_;
  TextStream text_;
  GenerateResult result_;
  RequestResult ended_;
  const Clock::time_point start_ = Clock::now();
  Clock::time_point first_;  // when the first token was drawn
  Position read_ = 0;        // tokens of the prompt that are evaluated or restored
  double read_ms_ = 0.0;
  std::exception_ptr thrown_;  // by a function of the request
  bool refused_ = false;       // on_text returned false
  bool done_ = false;
  bool left_ = false;
};

// Takes the request from the scheduler if the call ends before the request does.
class Submitted {
 public:
  Submitted(Scheduler& scheduler, RequestId id, Answer& answer)
      : scheduler_(scheduler), id_(id), answer_(answer) {}
  ~Submitted() {
    if (answer_.done()) return;
    answer_.Leave();
    scheduler_.Cancel(id_);
  }
  Submitted(const Submitted&) = delete;
  Submitted& operator=(const Submitted&) = delete;

 private:
  Scheduler& scheduler_;
  const RequestId id_;
  Answer& answer_;
};

}  // namespace

std::string_view StopReasonName(StopReason reason) {
  switch (reason) {
    case StopReason::kEndOfText: return "eos";
    case StopReason::kLength: return "length";
    case StopReason::kStopString: return "stop";
    case StopReason::kInterrupted: return "interrupted";
  }
  return "unknown";
}

double SpeculationReport::MeanCommitted() const {
  return rounds > 0 ? 1.0 + static_cast<double>(accepted) / static_cast<double>(rounds) : 0.0;
}

double GenerateResult::PrefillTokensPerSecond() const {
  return prefill_ms > 0.0 ? computed_tokens * 1e3 / prefill_ms : 0.0;
}

double GenerateResult::DecodeTokensPerSecond() const {
  return decoded_tokens > 0 && decode_ms > 0.0 ? decoded_tokens * 1e3 / decode_ms : 0.0;
}

Result<GenerateResult> Generate(Scheduler& scheduler, const GenerateRequest& request) {
  return GenerateShown(scheduler, request, {});
}

Result<GenerateResult> GenerateShown(Scheduler& scheduler, const GenerateRequest& request,
                                     const ShownTokens& shown) {
  for (const std::string& stop : request.stop) {
    if (stop.empty()) return InvalidArgument("a stop string is empty");
  }
  const auto answer = std::make_shared<Answer>(scheduler.engine(), request, shown);
  KVCACHE_ASSIGN_OR_RETURN(const RequestId id, scheduler.Submit(answer->Scheduled()));
  const Submitted submitted(scheduler, id, *answer);
  while (!answer->done()) KVCACHE_RETURN_IF_ERROR(scheduler.Step().status());
  return answer->TakeResult();
}

}  // namespace kvcache
