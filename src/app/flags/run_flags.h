// The flags of `kvcache run`.
//
// Thread safety: a value.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "app/flags/adapter_flags.h"
#include "app/flags/chat_flags.h"
#include "app/flags/command_line.h"
#include "app/flags/draft_flags.h"
#include "app/flags/engine_flags.h"
#include "app/flags/fetch_flags.h"
#include "app/flags/picture_flags.h"
#include "app/flags/store_flags.h"
#include "app/terminal/terminal.h"
#include "kvcache_engine/generate.h"
#include "model_store/stored_model.h"

namespace kvcache::app {

struct RunFlags {
  EngineFlags engine;
  ChatFlags chat;
  DraftFlags draft;
  AdapterFlags adapters;
  PictureFlags pictures;
  StoreFlags store;
  FetchFlags fetch;
  std::optional<std::string> prompt;
  std::string prompt_file;
  std::int32_t max_tokens = -1;
  SamplingParams sampling;
  std::optional<std::uint64_t> seed;
  std::vector<std::string> stop;
  bool json = false;

  // Declares the flags. REQUIRES: `command` is parsed while this lives.
  void Add(FlagSet command);

  // Takes over what a stored model says and no flag of the parsed command line does: its draft,
  // adapters, context, sampling, stops, template, system message and messages. Errors: kInvalidArgument: a
  // parameter with an impossible value.
  Status Adopt(const StoredModel& model);

  // Returns a request with these flags, without a prompt and on_text. It shows in `progress`, which
  // must outlive it, how much of the prompt is read: of `total` tokens, or of an unknown number if
  // that is 0.
  GenerateRequest MakeRequest(Progress& progress, std::size_t total) const;

 private:
  bool Given(const std::string& flag) { return command_->Find(flag).given(); }
  void TurnPenaltiesOff();  // those that no flag gives
  Status AdoptParameter(const std::string& name, const std::string& value);

  std::optional<FlagSet> command_;
};

// Refuses parameters of the model of that name that RunFlags::Adopt would refuse.
Status CheckStoredParameters(const std::string& name,
                             const std::vector<StoredParameter>& parameters);

}  // namespace kvcache::app
