// --draft and --draft-tokens: who proposes tokens, and how many at once.
//
// Thread safety: a value, until it is opened.
#pragma once

#include <memory>
#include <string>

#include "app/flags/command_line.h"
#include "kvcache/drafter.h"
#include "kvcache_engine/generate.h"

namespace kvcache::app {

// Declares --draft, for each command that has it. An empty `draft` means that it is not given: then a model that has
// a DRAFT in the store uses that. REQUIRES: `command` is parsed while *draft lives.
void AddDraftFlag(FlagSet command, std::string* draft);

// Returns whether `draft` is a file or the name of a model.
bool NamesDraftFile(const std::string& draft);

// Returns the file whose draft head `draft` means for a model (EngineOptions::draft_head): the model's own
// for "head", or a file that has just a head; empty for other drafters.
Result<std::string> FindDraftHead(const std::string& draft, const std::string& model);

class DraftFlags {
 public:
  // Declares the flags. REQUIRES: `command` is parsed while this lives.
  void Add(FlagSet command);
  Status Check() const;

  // Sets the drafter for a command line without --draft.
  void SetDefault(const std::string& draft) { draft_ = draft; }

  // Returns what --draft says; empty: it is not given.
  const std::string& draft() const { return draft_; }

  // As FindDraftHead, for --draft. Errors name the flag.
  Result<std::string> HeadFile(const std::string& model) const;
  // Opens the drafter of a model that runs, with the head that HeadFile returned. Errors name the flag.
  Status Open(Engine& engine);
  // Sets the request's drafter. REQUIRES: Open succeeded, and this outlives the request.
  void Fill(GenerateRequest& request) const;

 private:
  std::string draft_;
  std::string tokens_ = "auto";
  std::shared_ptr<Engine> engine_;  // of the draft model; copies of the flags share both
  std::shared_ptr<Drafter> drafter_;
};

}  // namespace kvcache::app
