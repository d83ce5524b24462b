// The flags of `kvcache run`.
//
// Thread safety: a value.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/chat_flags.h"
#include "cli/command_line.h"
#include "cli/draft_flags.h"
#include "cli/engine_flags.h"
#include "cli/store_flags.h"
#include "cli/terminal.h"
#include "kvcache_engine/generate.h"

namespace kvcache::cli {

struct RunFlags {
  EngineFlags engine;
  ChatFlags chat;
  DraftFlags draft;
  StoreFlags store;
  std::optional<std::string> prompt;
  std::string prompt_file;
  std::int32_t max_tokens = -1;
  SamplingParams sampling;
  std::optional<std::uint64_t> seed;
  std::vector<std::string> stop;
  bool json = false;

  // Declares the flags. REQUIRES: `command` is parsed while this lives.
  void Add(FlagSet command);

  // Returns a request with these flags, without a prompt and on_text. It shows in `progress`, which
  // must outlive it, how much of the prompt is read: of `total` tokens, or of an unknown number if
  // that is 0.
  GenerateRequest MakeRequest(Progress& progress, std::size_t total) const;
};

}  // namespace kvcache::cli
