// Fetches a model into the local store: from a registry as Ollama's, or from the Hugging Face hub.
//
//   hf.co/USER/REPO[:QUANT]   the hub ($HF_ENDPOINT, if that is set)
//   any other name            the registry of its host; by http if the host is this machine
//
// Blobs that are there are kept. Others are fetched one after another, continued where a pull before
// ended, and compared with their digests. The manifest follows last, so a model is there as a whole
// or not at all.
//
// Thread safety: free functions, from any number of threads and processes. Two that fetch one blob
// wait for each other.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "kvcache/status.h"
#include "model_store/model_store.h"
#include "pull/http_client.h"

namespace kvcache::pull {

// What a pull does now. The texts are those of Ollama's /api/pull.
struct PullState {
  std::string status;       // "pulling manifest", "pulling 0123456789ab", …, "success"
  std::string digest{};     // of the blob that is fetched; empty: none is
  std::uint64_t total = 0;  // its bytes
  std::uint64_t completed = 0;
};

struct PullOptions {
  std::function<void(const PullState& state)> report{};  // often, while bytes come
  std::function<bool()> cancelled{};
  int stall_seconds = 60;    // without progress before a server counts as silent
  int max_retries = 4;       // one after another, with less than 16 KiB between them
  double pause_seconds = 1;  // before the first retry; each next pause is twice as long
};

// Errors: kCancelled; kNotFound, kUnsupported: the server has no such model; kIo: the network or the
// disk; kCorrupt: a server that sends something else than it says. Messages name host and path.
Status PullModel(const ModelStore& store, const ModelName& name, HttpClient& client,
                 const PullOptions& options);

// The same with libcurl.
Status PullModel(const ModelStore& store, const ModelName& name, const PullOptions& options);

// Returns whether a name is one of the hub's.
bool IsHubName(const ModelName& name);

}  // namespace kvcache::pull
