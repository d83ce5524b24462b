#include "kvcache_engine/generate.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <utility>

#include "base/seconds_since.h"
#include "base/strings.h"
#include "engine/engine_impl.h"
#include "engine/request/check_logits.h"
#include "engine/request/stop_strings.h"
#include "kvcache/draft_depth.h"
#include "speculation/judge_drafts.h"
#include "tokenizer/unicode/utf8_stream.h"

namespace kvcache {
namespace {

using Clock = std::chrono::steady_clock;

// Passes the text of tokens to the caller: whole characters, except those that may begin a stop
// string.
class TextOutput {
 public:
  TextOutput(const Tokenizer& tokenizer, const GenerateRequest& request, GenerateResult& result)
      : tokenizer_(tokenizer), request_(request), result_(result), stops_(request.stop) {}

  // Returns false when the text has ended: at a stop string, or because on_text returned false.
  bool Push(std::int32_t token) {
    piece_.clear();
    whole_.clear();
    tokenizer_.AppendPiece(token, &piece_);
    characters_.Push(piece_, &whole_);
    const bool wanted = Emit(stops_.Push(whole_));
    if (stops_.stopped()) result_.stop = StopReason::kStopString;
    return wanted && !stops_.stopped();
  }

  void Finish() {
    if (stops_.stopped() || refused_) return;
    whole_.clear();
    characters_.Flush(&whole_);
    if (Emit(stops_.Push(whole_))) Emit(stops_.Flush());
  }

 private:
  bool Emit(const std::string& text) {
    if (text.empty()) return true;
    result_.text += text;
    if (!request_.on_text || request_.on_text(text)) return true;
    result_.stop = StopReason::kInterrupted;
    refused_ = true;
    return false;
  }

  const Tokenizer& tokenizer_;
  const GenerateRequest& request_;
  GenerateResult& result_;
  Utf8Stream characters_;
  StopStrings stops_;
  bool refused_ = false;  // on_text returned false
  std::string piece_;     // scratch: a token's bytes
  std::string whole_;     // scratch: the whole characters they complete
};

Status CheckRequest(const GenerateRequest& request, const Session& session, const Engine& engine) {
  KVCACHE_RETURN_IF_ERROR(request.sampling.Check());
  if (request.prompt.empty()) return {StatusCode::kInvalidArgument, "the prompt is empty"};
  const std::size_t total = session.tokens().size() + request.prompt.size();
  if (total > static_cast<std::size_t>(engine.context())) {
    return {StatusCode::kInvalidArgument,
            StrCat("the prompt has ", request.prompt.size(), " tokens",
                   session.position() > 0 ? StrCat(" after ", session.position()) : "",
                   ", the context holds ", engine.context())};
  }
  for (const std::string& stop : request.stop) {
    if (stop.empty()) return {StatusCode::kInvalidArgument, "a stop string is empty"};
  }
  if (request.draft_tokens < -1 || request.draft_tokens > DraftDepth::kMost) {
    return {StatusCode::kInvalidArgument, StrCat("draft tokens are ", request.draft_tokens,
                                                 "; must be from 0 to ", DraftDepth::kMost)};
  }
  if (request.draft_branches < 1) {
    return {StatusCode::kInvalidArgument,
            StrCat("draft branches are ", request.draft_branches, "; must be at least 1")};
  }
  return Status::Ok();
}

// Samples tokens, evaluates them, and lets a drafter propose some.
class Decoder {
 public:
  Decoder(Session& session, Engine& engine, const GenerateRequest& request, TextOutput& output,
          GenerateResult& result)
      : session_(session),
        engine_(engine),
        request_(request),
        output_(output),
        result_(result),
        sampler_(request.sampling),
        drafter_(engine.has_encoder() ? nullptr : request.drafter),
        history_(session.tokens().begin(), session.tokens().end()) {}

  Status Run(Clock::time_point start) {
    result_.stop = StopReason::kLength;
    start_ = first_ = start;
    if (drafter_ != nullptr) {
      drafter_->SetSequence(session_.sequence());
      GoOnWithout(drafter_->Begin(history_));
    }
    Status status = Loop();
    result_.decode_ms = MillisecondsSince(first_);
    return status;
  }

 private:
  Status Loop() {
    if (Room() == 0) return Status::Ok();
    KVCACHE_ASSIGN_OR_RETURN(bool goes_on, SampleLast());
    while (goes_on) {
      const Clock::time_point begin = Clock::now();
      drafts_.Clear();
      if (const int most = MostDrafts(); most > 0) {
        GoOnWithout(drafter_->ProposeTree(most, request_.draft_branches, drafts_));
        if (drafter_ == nullptr) drafts_.Clear();
        drafts_.KeepValid(static_cast<std::size_t>(most), engine_.info().embedding_rows);
      }
      if (drafts_.empty()) {
        // The time of a drafter that proposed nothing does not count.
        const Clock::time_point pass = Clock::now();
        KVCACHE_ASSIGN_OR_RETURN(goes_on, Evaluate());
        if (drafter_ != nullptr) drafter_->depth().Count(0, 0, SecondsSince(pass));
        if (goes_on) goes_on = Room() > 0;
        if (goes_on) {
          KVCACHE_ASSIGN_OR_RETURN(goes_on, SampleLast());
        }
      } else {
        KVCACHE_ASSIGN_OR_RETURN(goes_on, Round(begin));
      }
    }
    return Status::Ok();
  }

  // Returns how many tokens may still be sampled.
  std::size_t Room() const {
    if (request_.max_tokens < 0) return std::numeric_limits<std::int32_t>::max();
    const auto most = static_cast<std::size_t>(request_.max_tokens);
    return most - std::min(most, result_.tokens.size());
  }

  // A round samples a token for each draft and one more.
  int MostDrafts() {
    if (drafter_ == nullptr || Room() < 2) return 0;
    const int depth = request_.draft_tokens >= 0 ? request_.draft_tokens : drafter_->depth().Next();
    const auto room = static_cast<int>(std::min<std::size_t>(Room() - 1, DraftDepth::kMost));
    return std::min(
        {depth, room, engine_.context() - session_.position() - 1, engine_.max_batch() - 1});
  }

  Result<bool> SampleLast() {
    KVCACHE_ASSIGN_OR_RETURN(const std::span<const float> logits, session_.LastLogits());
    return Sample(logits);
  }

  // Samples the next token, which becomes the current one. Returns whether the text goes on.
  Result<bool> Sample(std::span<const float> logits) {
    KVCACHE_RETURN_IF_ERROR(
        CheckLogits(engine_, logits, static_cast<std::int32_t>(history_.size())));
    current_ = sampler_.Sample(logits, history_);
    if (result_.first_token_ms == 0.0) {
      result_.first_token_ms = MillisecondsSince(start_);
      first_ = Clock::now();
    }
    if (engine_.tokenizer().IsEndOfGeneration(current_)) {
      result_.stop = StopReason::kEndOfText;
      return false;
    }
    result_.tokens.push_back(current_);
    history_.push_back(current_);
    if (drafter_ != nullptr) GoOnWithout(drafter_->Add(current_));
    if (!output_.Push(current_)) return false;
    if (request_.interrupt != nullptr && request_.interrupt->load(std::memory_order_relaxed)) {
      result_.stop = StopReason::kInterrupted;
      return false;
    }
    return true;
  }

  // Evaluates the current token. A full context is shifted first if the request has a limit of tokens
  // (without one it would never end). Returns false if the context is full and not shifted.
  Result<bool> Evaluate() {
    if (session_.position() >= engine_.context()) {
      if (request_.max_tokens < 0 || engine_.context() < 4) return false;
      const bool has_bos = session_.tokens().front() == engine_.tokenizer().bos();
      KVCACHE_RETURN_IF_ERROR(session_.Shift(has_bos ? 1 : 0).status());
      ++result_.shifts;
      history_.assign(session_.tokens().begin(), session_.tokens().end());
      history_.push_back(current_);
    }
    const std::int32_t one[] = {current_};
    KVCACHE_RETURN_IF_ERROR(session_.Append(one));
    ++result_.decode_passes;
    ++result_.decoded_tokens;
    return true;
  }

  // Evaluates the current token and the drafts in one pass. Samples as without drafts, as long as the
  // samples are drafts: their logits have the same bits.
  Result<bool> Round(Clock::time_point begin) {
    const std::size_t vocabulary = static_cast<std::size_t>(engine_.vocabulary_size());
    bool goes_on = true;
    int kept = 0;
    const auto judge = [&](std::span<const float> logits) -> Result<std::int32_t> {
      Status status;
      const Verdict verdict = JudgeDrafts(drafts_, [&](std::int32_t draft) -> DrawnToken {
        const auto row = static_cast<std::size_t>(draft + 1);
        auto sampled = Sample(logits.subspan(row * vocabulary, vocabulary));
        goes_on = sampled.ok() && *sampled;
        if (!sampled.ok()) status = std::move(sampled).TakeStatus();
        return {.token = status.ok() ? current_ : -1, .goes_on = goes_on};
      });
      kept = verdict.drawn;
      KVCACHE_RETURN_IF_ERROR(status);
      result_.speculation.accepted += verdict.accepted;
      return verdict.last;
    };
    const Status verified = session_.Verify(current_, drafts_, judge);
    if (!verified.ok() && kept == 0 && CanDoWithout(verified)) {
      drafter_ = nullptr;
      return true;  // the current token is still to be evaluated
    }
    KVCACHE_RETURN_IF_ERROR(verified);
    const auto drafted = static_cast<int>(drafts_.size());
    result_.speculation.drafted += drafted;
    ++result_.speculation.rounds;
    ++result_.decode_passes;
    result_.decoded_tokens += kept;
    if (drafter_ != nullptr) drafter_->depth().Count(drafted, kept - 1, SecondsSince(begin));
    if (goes_on && Room() == 0) {
      KVCACHE_RETURN_IF_ERROR(Evaluate().status());
      return false;
    }
    return goes_on;
  }

  // Without a drafter the answer is the same.
  void GoOnWithout(Status status) {
    if (status.ok()) return;
    drafter_ = nullptr;
    result_.speculation.error = std::move(status);
  }

  // A cache without transactions, or without room for one, evaluates one token after the other.
  static bool CanDoWithout(const Status& status) {
    return status.code() == StatusCode::kUnsupported || status.code() == StatusCode::kCacheFull;
  }

  Session& session_;
  Engine& engine_;
  const GenerateRequest& request_;
  TextOutput& output_;
  GenerateResult& result_;
  Sampler sampler_;
  Drafter* drafter_;
  // What samplers see: the session's tokens and the current one.
  std::vector<std::int32_t> history_;
  DraftTree drafts_;
  std::int32_t current_ = 0;
  Clock::time_point start_, first_;
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

Result<GenerateResult> Generate(Session& session, Engine& engine, const GenerateRequest& request) {
  KVCACHE_RETURN_IF_ERROR(CheckRequest(request, session, engine));
  GenerateResult result;
  result.prompt_tokens = static_cast<std::int32_t>(request.prompt.size());
  const Clock::time_point start = Clock::now();
  const Position before = session.position();
  const auto report = [&](Position first, std::int32_t count) {
    if (request.on_prefill) request.on_prefill(first + count - before);
    return Status::Ok();
  };
  const bool encodes = engine.has_encoder() && before == 0;
  const Status prefill = encodes ? session.Encode(request.prompt, request.interrupt)
                                 : session.Append(request.prompt, report, request.interrupt);
  if (encodes && request.on_prefill) request.on_prefill(result.prompt_tokens);
  result.prefill_ms = MillisecondsSince(start);
  if (encodes) result.text_reuse = session.text_reuse();
  result.computed_tokens = encodes && prefill.ok()
                               ? result.prompt_tokens - result.text_reuse.stored
                               : std::max<std::int32_t>(0, session.position() - before);
  if (prefill.code() == StatusCode::kCancelled) {
    result.stop = StopReason::kInterrupted;
    return result;
  }
  KVCACHE_RETURN_IF_ERROR(prefill);
  TextOutput output(engine.tokenizer(), request, result);
  Decoder decoder(session, engine, request, output, result);
  KVCACHE_RETURN_IF_ERROR(decoder.Run(start));
  output.Finish();
  return result;
}

}  // namespace kvcache
