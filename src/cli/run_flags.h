// What `kvcache run` can be told, and what its answers are reported with.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "cli/chat_flags.h"
#include "cli/engine_flags.h"
#include "cli/terminal.h"
#include "engine/generate.h"

namespace kvcache::cli {

struct RunFlags {
  EngineFlags engine;
  ChatFlags chat;
  std::optional<std::string> prompt;
  std::string prompt_file;
  std::int32_t max_tokens = -1;
  SamplingParams sampling;
  std::optional<std::uint64_t> seed;
  std::vector<std::string> stop;
  bool json = false;

  // REQUIRES: `command` is parsed while this lives.
  void Add(CLI::App& command);

  // What generates an answer with these: without prompt and text sink. The progress of reading
  // a prompt is shown; of `total` tokens, where that is known.
  GenerateRequest MakeRequest(Progress& progress, std::size_t total) const;
};

// How many of a prompt's tokens were kept, and how many in the cache did not fit, and why.
struct PromptUse {
  std::int32_t kept = 0;
  std::int32_t dropped = 0;
  std::string reason;  // why; empty where none were dropped
};

// The object that --json prints for an answer.
nlohmann::json AnswerJson(Engine& engine, const RunFlags& flags, const GenerateResult& result,
                          const PromptUse& use, double load_ms);

// "prompt 1,204 tokens: 1,180 kept, 24 computed · first token 38 ms · 61 tokens/s"
std::string AnswerSummary(const GenerateResult& result, const PromptUse& use);

}  // namespace kvcache::cli
