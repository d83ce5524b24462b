// --offline, and the models that are fetched because a command names them.
//
// Thread safety: one thread at a time.
#pragma once

#include <string>

#include "app/flags/command_line.h"
#include "kvcache/status.h"
#include "model_store/model_name.h"

namespace kvcache::app {

class FetchFlags {
 public:
  // Declares the flag. REQUIRES: `command` is parsed while this lives.
  void Add(FlagSet command);

  // Returns whether nothing may be fetched: the flag, KVCACHE_OFFLINE or HF_HUB_OFFLINE says so.
  bool offline() const;

  // Fetches MODEL if it is a name that the machine does not have. Does nothing for files, for texts that look like paths,
  // for what LocateModel finds, and offline. Errors: those of the pull, after what LocateModel says.
  Status Fetch(const std::string& model) const;
  // The same for what --draft says, which may be no model. Errors name the flag.
  Status FetchDraft(const std::string& draft) const;

 private:
  bool offline_ = false;
};

// Fetches a model into the store, shows its progress, and ends at Ctrl-C.
Status PullWithProgress(const ModelName& name, int stall_seconds);

}  // namespace kvcache::app
