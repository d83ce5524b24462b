// --draft and --draft-tokens: who proposes tokens, and how many at once.
//
// Thread safety: a value, until it is opened.
#pragma once

#include <memory>
#include <string>

#include "cli/command_line.h"
#include "kvcache/drafter.h"
#include "kvcache_engine/generate.h"

namespace kvcache::cli {

class DraftFlags {
 public:
  // Declares the flags. REQUIRES: `command` is parsed while this lives.
  void Add(FlagSet command);
  Status Check() const;

  // Sets the drafter for a command line without --draft.
  void SetDefault(const std::string& draft) { draft_ = draft; }

  // Opens the drafter of a model that runs. Errors name the flag.
  Status Open(const Engine& engine);
  // Sets the request's drafter. REQUIRES: Open succeeded, and this outlives the request.
  void Fill(GenerateRequest& request) const;

 private:
  std::string draft_ = "none";
  std::string tokens_ = "auto";
  std::shared_ptr<Engine> engine_;  // of the draft model; copies of the flags share both
  std::shared_ptr<Drafter> drafter_;
};

}  // namespace kvcache::cli
