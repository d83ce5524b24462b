// Generates texts for the routes: prompts in, pieces of text out. It owns the scheduler and the
// thread of the engine.
//
// Thread safety: any thread. The functions of a request are called on the engine's thread and must
// return soon.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "chat_template/chat_template.h"
#include "dialect/answer_part.h"
#include "kvcache/status.h"
#include "kvcache_engine/scheduler.h"
#include "server/models/model_service.h"
#include "server/models/prompt_line.h"
#include "server/output/answer_constraint.h"

namespace kvcache::server {

struct Prompt {
  std::vector<std::int32_t> tokens{};
  std::vector<PromptPicture> pictures{};   // of the tokens
  std::vector<Position> restore_points{};  // where messages end
  std::vector<std::string> stops{};        // texts that end an answer besides tokens
  AnswerSyntax answer{};
  std::string
      begun{};  // the text of the answer that the prompt ends with; a form holds for all of it
  bool chat = false;  // the answer's leading space belongs to the encoding, not to the text
};

struct TextResult {
  Status status{};  // if it is not Ok, the request failed with it
  StopReason stop = StopReason::kLength;
  std::string stop_string{};   // of the request's; empty: another end
  std::int32_t generated = 0;  // tokens
  std::int32_t thoughts = 0;   // of them, if the answer is parsed
  ReuseReport reuse{};
  PromptDifference difference{};  // empty: the prompt leaves no cached one
  double first_token_ms = 0.0;
  double total_ms = 0.0;
};

// A token of an answer, and how likely the model finds it and others.
struct TokenLogprob {
  std::string text{};  // its bytes
  float logprob = 0.0f;
  std::vector<std::pair<std::string, float>> top{};  // the most likely tokens, most likely first
  std::int32_t token = -1;
  std::vector<std::int32_t> top_tokens{};  // those of `top`
};

// A prefix of the prompt that is kept for some time after the request.
struct PromptPin {
  Position length = 0;
  double seconds = 0.0;
};

struct TextRequest {
  Prompt prompt{};
  std::vector<PromptPin> pins{};
  std::uint64_t salt = 0;  // of the user; others share nothing
  std::vector<AdapterUse> adapters{};
  SamplingParams sampling{};
  AnswerForm form{};                                     // null: any text
  std::int32_t max_tokens = -1;                          // at most; the context bounds it too
  std::vector<std::string> stop{};                       // the text ends before the first of these
  std::function<void(const ReuseReport&)> on_started{};  // before the first text
  int top_logprobs = -1;                                 // -1: on_logprob is not called
  // Called with each token, before on_text. The numbers are the model's: nothing that the sampling does to
  // logits changes them.
  std::function<void(TokenLogprob)> on_logprob{};
  std::function<void(std::int32_t)> on_token{};  // called with each token, before on_text
  // Called with whole characters. Returns whether the text goes on.
  std::function<bool(std::string_view)> on_text{};
  std::function<void(const TextResult&)> on_done{};  // once
};

class TextService : public ModelService {
 public:
  // `engine` must outlive the service. `max_running`: requests at a time, waiting ones included.
  // The engine's draft head or draft model is used if it has one. `chat_template`: instead of the model's own;
  // empty: that one. `dialect`: the name of the model's; empty: what its template says. Errors: those of Scheduler::Make and of the template.
  static Result<std::unique_ptr<TextService>> Make(Engine& engine, std::int64_t max_running,
                                                   SchedulerOptions options = {},
                                                   const std::string& chat_template = "",
                                                   const std::string& dialect = "");
  // Renders a conversation by the model's template. Errors: those of the template.
  virtual Result<Prompt> Render(ChatInput input) const = 0;
  virtual Result<std::string> RenderText(ChatInput input) const = 0;
  // Returns how the model writes thoughts and calls of tools.
  virtual const SharedDialect& dialect() const = 0;
  // Returns whether the model's answers may begin with thoughts.
  virtual bool reasons() const = 0;
  // Takes a picture for texts that are rendered or encoded: the picture, and the mark that stands for it. Errors: those
  // of Engine::PreparePicture.
  virtual Result<std::pair<PicturePtr, std::string>> TakePicture(std::span<const std::byte> file,
                                                                 std::string_view name) = 0;
  // Encodes a text that the model continues.
  virtual Result<Prompt> Encode(std::string_view text) const = 0;

  // Begins all of the requests or none. Errors: those of Scheduler::Submit; kCacheFull if too many
  // requests run; kCancelled after StopAccepting. If Scheduler::Submit fails for one, those before it are
  // cancelled, and their functions are still called.
  virtual Result<std::vector<RequestId>> Submit(std::vector<TextRequest> requests) = 0;
  virtual void Cancel(RequestId request) = 0;
  // Calls `done` on the engine's thread with what the prompt would reuse now. `salt`: as Engine::SaltOf says.
  virtual void Probe(std::vector<std::int32_t> prompt, std::uint64_t salt,
                     std::function<void(Result<PrefixMatch>)> done) = 0;
  // Calls `view` on the engine's thread, between two passes. A pointer to the scheduler must not be kept.
  virtual void View(std::function<void(const Scheduler&, std::int64_t free_cells)> view) = 0;
  // Returns the text of one token.
  virtual std::string Piece(std::int32_t token) const = 0;
  // Returns the tokens that pins keep at most; more than that are not pinned.
  virtual std::int64_t max_pinned() const = 0;
  virtual const Engine& engine() const = 0;
};

}  // namespace kvcache::server
