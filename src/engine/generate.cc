#include "kvcache_engine/generate.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/strings.h"
#include "engine/check_logits.h"
#include "engine/engine_impl.h"
#include "engine/stop_strings.h"
#include "tokenizer/unicode/utf8_stream.h"

namespace kvcache {
namespace {

using Clock = std::chrono::steady_clock;

double MillisecondsSince(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

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
  return Status::Ok();
}

// Evaluates the sampled token. A full context is shifted first if the request has a limit of tokens
// (without one it would never end). Returns false if the context is full and not shifted.
Result<bool> Evaluate(Session& session, Engine& engine, const GenerateRequest& request,
                      std::int32_t token, GenerateResult& result) {
  if (session.position() >= engine.context()) {
    if (request.max_tokens < 0 || engine.context() < 4) return false;
    const bool has_bos = session.tokens().front() == engine.tokenizer().bos();
    KVCACHE_ASSIGN_OR_RETURN(const std::int32_t dropped, session.Shift(has_bos ? 1 : 0));
    (void)dropped;
    ++result.shifts;
  }
  const std::int32_t one[] = {token};
  KVCACHE_RETURN_IF_ERROR(session.Append(one));
  ++result.decode_passes;
  return true;
}

Status Decode(Session& session, Engine& engine, const GenerateRequest& request, TextOutput& output,
              Clock::time_point start, GenerateResult& result) {
  Sampler sampler(request.sampling);
  Clock::time_point first = start;
  result.stop = StopReason::kLength;
  while (request.max_tokens < 0 ||
         result.tokens.size() < static_cast<std::size_t>(request.max_tokens)) {
    KVCACHE_ASSIGN_OR_RETURN(const std::span<const float> logits, session.LastLogits());
    KVCACHE_RETURN_IF_ERROR(CheckLogits(engine, logits, session.position()));
    const std::int32_t token = sampler.Sample(logits, session.tokens());
    if (result.first_token_ms == 0.0) {
      result.first_token_ms = MillisecondsSince(start);
      first = Clock::now();
    }
    if (engine.tokenizer().IsEndOfGeneration(token)) {
      result.stop = StopReason::kEndOfText;
      break;
    }
    result.tokens.push_back(token);
    if (!output.Push(token)) break;
    if (request.interrupt != nullptr && request.interrupt->load(std::memory_order_relaxed)) {
      result.stop = StopReason::kInterrupted;
      break;
    }
    KVCACHE_ASSIGN_OR_RETURN(const bool evaluated,
                             Evaluate(session, engine, request, token, result));
    if (!evaluated) break;
  }
  result.decode_ms = MillisecondsSince(first);
  return Status::Ok();
}

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

double GenerateResult::PrefillTokensPerSecond() const {
  return prefill_ms > 0.0 ? computed_tokens * 1e3 / prefill_ms : 0.0;
}

double GenerateResult::DecodeTokensPerSecond() const {
  return decode_passes > 0 && decode_ms > 0.0 ? decode_passes * 1e3 / decode_ms : 0.0;
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
  result.computed_tokens = encodes && prefill.ok()
                               ? result.prompt_tokens
                               : std::max<std::int32_t>(0, session.position() - before);
  if (prefill.code() == StatusCode::kCancelled) {
    result.stop = StopReason::kInterrupted;
    return result;
  }
  KVCACHE_RETURN_IF_ERROR(prefill);
  TextOutput output(engine.tokenizer(), request, result);
  KVCACHE_RETURN_IF_ERROR(Decode(session, engine, request, output, start, result));
  output.Finish();
  return result;
}

}  // namespace kvcache
