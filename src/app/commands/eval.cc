// kvcache eval: score given text, and write its logits.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <iterator>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include "app/commands/command.h"
#include "app/commands/json_report.h"
#include "app/commands/resume_through.h"
#include "app/flags/adapter_flags.h"
#include "app/flags/engine_flags.h"
#include "app/flags/flag_checks.h"
#include "app/flags/model_store.h"
#include "app/flags/store_flags.h"
#include "app/terminal/terminal.h"
#include "base/errors.h"
#include "base/strings.h"
#include "engine/engine_impl.h"
#include "engine/npy_writer.h"
#include "engine/request/score.h"

namespace kvcache::app {
namespace {

struct EvalFlags {
  EngineFlags engine;
  AdapterFlags adapters;
  std::string tokens;
  std::string tokens_file;
  std::string text_file;
  bool special = false;
  std::string encoded;
  std::string encoded_file;
  std::string logits;
  Position resume_at = 0;
  ResumeTier via = ResumeTier::kLive;
  StoreFlags store;
  bool json = false;
};

// What came back through a tier.
struct Resumed {
  Position tokens = 0;
  double ms = 0.0;
};

Result<std::vector<std::int32_t>> TokensOfFile(const std::string& path) {
  KVCACHE_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path));
  auto tokens = ParseTokens(text);
  if (!tokens.ok()) return std::move(tokens).TakeStatus().WithContext(path);
  return tokens;
}

Result<std::vector<std::int32_t>> GivenTokens(const EvalFlags& flags) {
  if (!flags.text_file.empty()) {
    KVCACHE_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(flags.text_file));
    KVCACHE_ASSIGN_OR_RETURN(const auto tokenizer, OpenTokenizer(flags.engine.model()));
    const SpecialText special = flags.special ? SpecialText::kParse : SpecialText::kPlain;
    return tokenizer->Encode(text, {.special = special});
  }
  if (flags.tokens_file.empty()) return ParseTokens(flags.tokens);
  return TokensOfFile(flags.tokens_file);
}

// Returns the tokens for the encoder; none without a flag.
Result<std::vector<std::int32_t>> EncodedTokens(const EvalFlags& flags) {
  if (!flags.encoded.empty()) {
    KVCACHE_ASSIGN_OR_RETURN(const auto tokenizer, OpenTokenizer(flags.engine.model()));
    return tokenizer->Encode(flags.encoded);
  }
  if (flags.encoded_file.empty()) return std::vector<std::int32_t>();
  return TokensOfFile(flags.encoded_file);
}

Status CheckEncoder(const Engine& engine, bool encodes) {
  if (engine.has_encoder() == encodes) return Status::Ok();
  return InvalidArgument(
      encodes ? "the model has no encoder: leave out --encode and --encode-tokens-file"
              : "the model has an encoder: give its text with --encode");
}

// The largest perplexity whose digits a double has all of; larger ones are given as a power of e.
constexpr double kMaxDigits = 1e15;

std::string PerplexityText(const ScoreResult& score) {
  char text[64];
  const bool plain = score.perplexity < kMaxDigits;
  (void)std::snprintf(text, sizeof(text), plain ? "%.6f" : "e^%.6g",
                      plain ? score.perplexity : score.nll / (score.tokens - 1));
  return text;
}

// JSON has no infinity: null for what is larger than a double, as for a single token.
nlohmann::json PerplexityJson(const ScoreResult& score) {
  const bool has_value = score.tokens > 1 && std::isfinite(score.perplexity);
  return has_value ? nlohmann::json(score.perplexity) : nlohmann::json();
}

Status Report(const EvalFlags& flags, Engine& engine, const ScoreResult& score,
              const Resumed& resumed) {
  const double rate = score.tokens * 1e3 / score.prefill_ms;
  const bool scored = score.tokens > 1;
  if (!flags.json && !scored) {
    (void)std::printf("1 token · nothing to score: no token comes before the first\n");
    return Status::Ok();
  }
  const std::string tier = kResumeTierNames[static_cast<std::size_t>(flags.via)];
  if (!flags.json) {
    if (flags.resume_at > 0) {
      (void)std::printf("%s tokens restored from %s in %.1f ms · ",
                        WithThousands(resumed.tokens).c_str(), tier.c_str(), resumed.ms);
    }
    (void)std::printf("%s tokens · nll %.6f · perplexity %s · %.0f tokens/s\n",
                      WithThousands(score.tokens).c_str(), score.nll, PerplexityText(score).c_str(),
                      rate);
    return Status::Ok();
  }
  PrintJson({{"tokens", score.tokens},
             {"nll", score.nll},
             {"perplexity", PerplexityJson(score)},
             {"reuse", PromptTokensJson(score.tokens - resumed.tokens, resumed.tokens, tier)},
             {"timing",
              {{"restore_ms", resumed.ms},
               {"prefill_ms", score.prefill_ms},
               {"prefill_tokens_per_s", rate}}},
             {"memory", MemoryJson(engine)}});
  return Status::Ok();
}

// Refuses to replace a file that the command reads.
Status CheckLogitsPath(const EvalFlags& flags, const std::string& model) {
  if (flags.logits.empty()) return Status::Ok();
  if (flags.logits == "-") {
    return InvalidArgument(
        "--logits - would write a file named '-'; /dev/stdout writes to standard output");
  }
  std::error_code error;  // set for a file that does not exist
  if (!std::filesystem::is_regular_file(flags.logits, error)) return Status::Ok();
  for (const std::string& input : {model, flags.tokens_file, flags.text_file, flags.encoded_file}) {
    if (!input.empty() && std::filesystem::equivalent(input, flags.logits, error) && !error) {
      return InvalidArgument(StrCat("--logits ", flags.logits, " would replace ", input,
                                    ", which this command reads; give another file"));
    }
  }
  return Status::Ok();
}

// Without --ctx, the cache is as large as the tokens need.
Status Eval(EvalFlags& flags) {
  KVCACHE_ASSIGN_OR_RETURN(const FoundModel found, LocateModel(flags.engine.model()));
  const std::string& model = found.path;
  if (found.stored) flags.adapters.SetDefault(found.stored->adapters);
  KVCACHE_RETURN_IF_ERROR(CheckLogitsPath(flags, model));
  KVCACHE_ASSIGN_OR_RETURN(const auto tokens, GivenTokens(flags));
  if (tokens.empty()) return InvalidArgument("there are no tokens to score");
  KVCACHE_ASSIGN_OR_RETURN(const auto encoded, EncodedTokens(flags));
  const std::size_t count = tokens.size() + (encoded.empty() ? 0 : 1);
  KVCACHE_ASSIGN_OR_RETURN(auto adapters, LoadAdapters(flags.adapters.given(), model));
  flags.engine.SetAdapters(std::move(adapters));
  flags.store.UsePackedWeights();
  KVCACHE_ASSIGN_OR_RETURN(const auto engine,
                           flags.engine.OpenFor(static_cast<int>(std::max(count, encoded.size()))));
  KVCACHE_RETURN_IF_ERROR(flags.store.TokensBesideContext(*engine).status());
  KVCACHE_RETURN_IF_ERROR(CheckEncoder(*engine, !encoded.empty()));
  const std::atomic<bool>& interrupt = CatchInterrupt();
  std::optional<NpyWriter> writer;
  if (!flags.logits.empty()) {
    KVCACHE_ASSIGN_OR_RETURN(writer,
                             NpyWriter::Create(flags.logits, static_cast<std::int64_t>(count),
                                               engine->info().vocabulary));
  }
  const LogitsSink sink = [&](std::span<const float> rows) { return writer->Write(rows); };
  Session session(*engine, SequenceId{0});
  KVCACHE_RETURN_IF_ERROR(session.UseAdapters(flags.adapters.Uses()));
  if (!encoded.empty()) KVCACHE_RETURN_IF_ERROR(session.Encode(encoded, &interrupt));
  Resumed resumed;
  const ScoreResume resume{.at = flags.resume_at, .resume = [&]() -> Status {
                             KVCACHE_ASSIGN_OR_RETURN(
                                 resumed.ms,
                                 ResumeThrough(flags.via, flags.store, *engine, session));
                             resumed.tokens = session.position();
                             return Status::Ok();
                           }};
  const auto score =
      Score(session, *engine, tokens, writer ? sink : LogitsSink{}, &interrupt, resume);
  if (score.status().code() == StatusCode::kCancelled) {
    return {StatusCode::kCancelled, StrCat("interrupted after ", WithThousands(session.position()),
                                           " of ", WithThousands(std::ssize(tokens)), " tokens")};
  }
  KVCACHE_RETURN_IF_ERROR(score.status());
  if (writer) KVCACHE_RETURN_IF_ERROR(writer->Close());
  StoreFlags::Finish(*engine);
  return Report(flags, *engine, *score, resumed);
}

}  // namespace

Command AddEval(CommandLine& line) {
  FlagSet command = line.AddCommand("eval", "Score given text: perplexity and logits");
  const auto flags = std::make_shared<EvalFlags>();
  flags->engine.Add(command, "what the text needs");
  flags->adapters.Add(command);
  FlagSet source = command.AddOneOf("Text", "exactly one of");
  source.AddText("--tokens", &flags->tokens, "token ids, such as 1,450,17").ValueName("IDS");
  source.AddText("--tokens-file", &flags->tokens_file, "a file of token ids; - is standard input")
      .ValueName("F");
  const Flag text =
      source.AddText("--text-file", &flags->text_file, "a file of text; - is standard input")
          .ValueName("F");
  command
      .AddSwitch("--special", &flags->special, "parse special tokens, such as <s>, in --text-file")
      .Needs(text);
  const Flag encode = command
                          .AddText("--encode", &flags->encoded,
                                   "the text for the encoder of a model that has one (t5)")
                          .ValueName("TEXT");
  command.AddText("--encode-tokens-file", &flags->encoded_file, "the same, as a file of token ids")
      .ValueName("F")
      .Excludes(encode);
  command
      .AddText("--logits", &flags->logits,
               "write the logits as float32 [tokens, vocabulary]: row i predicts the token after "
               "token i")
      .ValueName("OUT.npy");
  const char* const group = "Resuming";
  const Flag at =
      command
          .AddNumber("--resume-at", &flags->resume_at,
                     "after N tokens, let the state go and restore it: the logits are the same")
          .Range(1, std::numeric_limits<Position>::max())
          .Group(group)
          .ValueName("N");
  const auto parse = [via = &flags->via](const std::string& name) -> Status {
    KVCACHE_ASSIGN_OR_RETURN(*via, ParseResumeTier(name));
    return Status::Ok();
  };
  command
      .AddParsed(
          "--via", parse,
          "through what: live (default, the cells stay), memory, disk or remote, the last two in "
          "the first such store of --store")
      .Group(group)
      .ValueName("TIER")
      .Needs(at);
  flags->store.Add(command);
  command.AddSwitch("--json", &flags->json, "print one JSON object instead of text");
  command.RefuseEmptyValues({});
  source.RefuseEmptyValues({"--tokens"});
  command.CheckParsed([flags] {
    return CheckOneStandardInput({{"--tokens-file", flags->tokens_file},
                                  {"--text-file", flags->text_file},
                                  {"--encode-tokens-file", flags->encoded_file}});
  });
  return {"eval", [flags] { return Eval(*flags); }};
}

}  // namespace kvcache::app
