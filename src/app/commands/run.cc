// kvcache run: generate text, or chat.
#include <chrono>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "app/chat/answer_output.h"
#include "app/chat/answer_report.h"
#include "app/chat/answer_view.h"
#include "app/chat/chat_loop.h"
#include "app/chat/chat_tools.h"
#include "app/chat/context_fit.h"
#include "app/commands/command.h"
#include "app/commands/json_report.h"
#include "app/flags/model_store.h"
#include "app/flags/run_flags.h"
#include "app/terminal/notes.h"
#include "base/errors.h"
#include "base/seconds_since.h"
#include "base/strings.h"
#include "engine/engine_impl.h"
#include "kvcache_engine/chat.h"
#include "kvcache_engine/embedder.h"
#include "kvcache_engine/scheduler.h"

namespace kvcache::app {
namespace {

bool IsChat(const RunFlags& flags) {
  if (flags.chat.chat) return true;
  return !flags.prompt && flags.prompt_file.empty() && StdinIsTerminal();
}

Result<std::string> ReadPrompt(const RunFlags& flags) {
  if (flags.prompt) return *flags.prompt;
  KVCACHE_ASSIGN_OR_RETURN(std::string text,
                           ReadTextFile(flags.prompt_file.empty() ? "-" : flags.prompt_file));
  // Editors and echo end a file with a newline that is not part of the prompt.
  if (text.ends_with('\n')) text.pop_back();
  return text;
}

// Returns an error if Ctrl-C came before the first token: there is no answer.
Status CheckAnswered(const GenerateResult& result) {
  if (result.stop != StopReason::kInterrupted || !result.tokens.empty()) return Status::Ok();
  return {StatusCode::kCancelled,
          StrCat("interrupted after ", WithThousands(result.computed_tokens), " of ",
                 WithThousands(result.prompt_tokens - result.reuse.restored),
                 " prompt tokens; there is no answer")};
}

Status Report(Engine& engine, const RunFlags& flags, const ChatTurn& turn, double load_ms,
              const std::vector<ToolResult>& results = {}) {
  if (flags.json) {
    nlohmann::json report = AnswerJson(engine, flags, turn, load_ms);
    AddResultsJson(results, report);
    PrintJson(report);
    return CheckAnswered(turn.result);
  }
  KVCACHE_RETURN_IF_ERROR(CheckAnswered(turn.result));
  if (turn.calls.empty() || !turn.result.text.empty()) (void)std::fputc('\n', stdout);
  (void)std::fflush(stdout);
  if (StderrIsTerminal()) (void)std::fprintf(stderr, "\n%s\n", AnswerSummary(turn).c_str());
  return Status::Ok();
}

// Returns the advice for a prompt that does not fit.
std::string AdviceOnLength(const Engine& engine) {
  const int own = engine.info().context_length;
  if (own > engine.context()) return StrCat("; give a larger --ctx, up to ", own);
  return ", which is the most that the model was made for: shorten the prompt";
}

Status CheckFits(const Engine& engine, std::size_t tokens) {
  if (tokens <= static_cast<std::size_t>(engine.context())) return Status::Ok();
  return InvalidArgument(StrCat("the prompt has ", tokens, " tokens, the context holds ",
                                engine.context(), AdviceOnLength(engine)));
}

// Returns the beginning of a prompt without a template: the pictures of --image behind a begin-of-sequence token; empty
// without pictures.
Result<PicturePrompt> PicturesBefore(const Engine& engine, const RunFlags& flags) {
  PicturePrompt prompt;
  KVCACHE_ASSIGN_OR_RETURN(const auto pictures, flags.pictures.Read(engine));
  if (pictures.empty()) return prompt;
  KVCACHE_ASSIGN_OR_RETURN(prompt.tokens, engine.Tokenize("", TextPlace::kBeginning));
  for (const PicturePtr& picture : pictures) {
    KVCACHE_RETURN_IF_ERROR(engine.AddPicture(picture, prompt));
  }
  return prompt;
}

// Generates a continuation of `text`, without a template.
Status Continue(Engine& engine, const RunFlags& flags, const std::string& text, double load_ms) {
  const EncodeOptions options{.special =
                                  flags.chat.special ? SpecialText::kParse : SpecialText::kPlain};
  KVCACHE_ASSIGN_OR_RETURN(PicturePrompt prompt, PicturesBefore(engine, flags));
  EncodeOptions rest = options;
  if (!prompt.tokens.empty()) rest.add_bos = AddToken::kNo;
  KVCACHE_ASSIGN_OR_RETURN(const auto tokens, engine.tokenizer().Encode(text, rest));
  prompt.tokens.insert(prompt.tokens.end(), tokens.begin(), tokens.end());
  KVCACHE_RETURN_IF_ERROR(CheckFits(engine, prompt.tokens.size()));
  KVCACHE_ASSIGN_OR_RETURN(const auto scheduler, Scheduler::Make(engine, {.one_at_a_time = true}));
  Progress progress;
  GenerateRequest request = flags.MakeRequest(progress, prompt.tokens.size());
  request.prompt = std::move(prompt.tokens);
  request.pictures = std::move(prompt.pictures);
  AnswerOutput output;
  if (!flags.json) {
    if (StdoutIsTerminal()) (void)output.Write(text);
    output.End();
    request.on_text = [&output](std::string_view piece) { return output.Write(piece); };
  }
  ChatTurn turn;
  KVCACHE_ASSIGN_OR_RETURN(turn.result, Generate(*scheduler, request));
  output.End();
  return Report(engine, flags, turn, load_ms);
}

// Generates the next answer of the chat, and writes its text.
Result<ChatTurn> AnswerOnce(Engine& engine, const RunFlags& flags, Chat& chat) {
  Progress progress;
  GenerateRequest request = flags.MakeRequest(progress, 0);
  AnswerView view(progress, AnswerBegin::kAsWritten);
  ChatHandlers handlers;
  if (!flags.json) view.Watch(request, handlers);
  auto turn = chat.Answer(std::move(request), std::move(handlers));
  view.End();
  if (turn.ok()) return turn;
  Status status = std::move(turn).TakeStatus();
  if (status.code() == StatusCode::kCacheFull) {
    const char* const tools =
        chat.conversation().HasTools() ? "; tools and their results are a part of it" : "";
    return Status(status.code(), StrCat(status.message(), AdviceOnLength(engine), tools));
  }
  return status.code() == StatusCode::kUnsupported ? AdviseOnTemplate(std::move(status)) : status;
}

// Generates answers to the one message `text`, until one has no calls of tools.
Status AnswerOne(Engine& engine, const RunFlags& flags, ModelDialect dialect,
                 const std::string& text, double load_ms) {
  Chat chat(engine, std::move(dialect));
  Conversation& conversation = chat.conversation();
  KVCACHE_RETURN_IF_ERROR(flags.chat.Fill(conversation));
  KVCACHE_ASSIGN_OR_RETURN(ChatTools tools, ChatTools::Open(flags, chat));
  tools.OfferTo(conversation);
  std::istringstream unused(UnusedByTemplate(chat));
  for (std::string line; std::getline(unused, line);) AddNote(line);
  KVCACHE_ASSIGN_OR_RETURN(std::vector<PicturePtr> pictures, flags.pictures.Read(engine));
  conversation.Add("user", text, std::move(pictures));
  const auto editor = tools.MayAsk() ? MakeLineEditor() : nullptr;
  for (int round = 1;; ++round) {
    KVCACHE_ASSIGN_OR_RETURN(const ChatTurn turn, AnswerOnce(engine, flags, chat));
    if (!flags.json) KVCACHE_RETURN_IF_ERROR(Report(engine, flags, turn, load_ms));
    const bool goes_on = tools.Run(turn, round, engine, conversation, editor.get());
    if (flags.json) {
      const double ms = std::exchange(load_ms, 0.0);
      KVCACHE_RETURN_IF_ERROR(Report(engine, flags, turn, ms, tools.results()));
    }
    if (goes_on) continue;
    if (tools.refusal().empty()) return Status::Ok();
    return {StatusCode::kCancelled, StrCat("there is no last answer: ", tools.refusal())};
  }
}

Status RunPrompt(Engine& engine, const RunFlags& flags, const std::string& text, double load_ms) {
  const Status fits = CheckBytesFit(engine, text);
  if (!fits.ok()) return {fits.code(), StrCat("the prompt ", fits.message())};
  if (flags.chat.raw) return Continue(engine, flags, text, load_ms);
  auto dialect = flags.chat.Dialect(engine);
  if (!dialect.ok()) return AdviseOnTemplate(std::move(dialect).TakeStatus());
  const ChatFormatKind kind = dialect->format(/*tools=*/nullptr).kind();
  const bool plain = kind == ChatFormatKind::kPlain && !flags.chat.NeedTemplate();
  if (plain) return Continue(engine, flags, text, load_ms);
  return AnswerOne(engine, flags, std::move(dialect).value(), text, load_ms);
}

// Decoders that are made for ranks or embeddings have the tensors to generate, and give nonsense. Errors of the file
// are those of opening it.
Status CheckGenerates(const std::string& model, const std::string& path) {
  const auto purpose = PurposeOf(path);
  if (!purpose.ok() || *purpose == FilePurpose::kGeneration) return Status::Ok();
  const bool ranks = *purpose == FilePurpose::kReranking;
  return Unsupported(StrCat(Quoted(model), " is made for ", ranks ? "ranks" : "embeddings",
                            ", not to generate text; use 'kvcache ", ranks ? "rerank" : "embed",
                            "'"));
}

Status Run(RunFlags& flags) {
  const auto start = std::chrono::steady_clock::now();
  KVCACHE_RETURN_IF_ERROR(flags.sampling.Check());
  KVCACHE_RETURN_IF_ERROR(flags.fetch.Fetch(flags.engine.model()));
  KVCACHE_RETURN_IF_ERROR(flags.fetch.FetchDraft(flags.draft.draft()));
  KVCACHE_ASSIGN_OR_RETURN(const FoundModel found, LocateModel(flags.engine.model()));
  if (found.stored) KVCACHE_RETURN_IF_ERROR(flags.Adopt(*found.stored));
  KVCACHE_RETURN_IF_ERROR(CheckGenerates(flags.engine.model(), found.path));
  const bool is_chat = IsChat(flags);
  std::string text;
  if (!is_chat) {
    KVCACHE_ASSIGN_OR_RETURN(text, ReadPrompt(flags));
    if (text.empty()) return InvalidArgument("the prompt is empty");
  }
  flags.sampling.seed = flags.seed ? *flags.seed : std::random_device{}();
  KVCACHE_ASSIGN_OR_RETURN(std::string head, flags.draft.HeadFile(flags.engine.model()));
  flags.engine.SetDraftHead(std::move(head));
  KVCACHE_ASSIGN_OR_RETURN(auto adapters, LoadAdapters(flags.adapters.given(), found.path));
  flags.engine.SetAdapters(std::move(adapters));
  flags.store.UsePackedWeights();
  KVCACHE_ASSIGN_OR_RETURN(const auto engine, flags.engine.Open());
  KVCACHE_RETURN_IF_ERROR(flags.draft.Open(*engine));
  KVCACHE_RETURN_IF_ERROR(flags.store.TokensBesideContext(*engine).status());
  flags.store.Use(*engine);
  KVCACHE_RETURN_IF_ERROR(flags.pictures.Use(*engine));
  const double load_ms = MillisecondsSince(start);
  if (is_chat) return RunChat(*engine, flags, load_ms);
  Status status = RunPrompt(*engine, flags, text, load_ms);
  StoreFlags::Finish(*engine);
  return status;
}

}  // namespace

Command AddRun(CommandLine& line) {
  const FlagSet command = line.AddCommand("run", "Answer a prompt, or chat");
  const auto flags = std::make_shared<RunFlags>();
  flags->Add(command);
  return {"run", [flags] { return Run(*flags); }};
}

}  // namespace kvcache::app
