// Computes embeddings and ranks for the routes, on a thread of its own. A request with many inputs is computed in parts,
// after which the next request has its turn. Generations have theirs between passes (compute_turns.h). A client that
// leaves ends the work within one pass.
//
// Thread safety: any thread. The function of a request is called on the service's thread and must return soon.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "kvcache/status.h"
#include "kvcache_engine/embedder.h"
#include "server/models/compute_turns.h"
#include "server/models/model_service.h"

namespace kvcache::server {

struct EmbeddingResult {
  Status status{};  // if it is not Ok, the request failed with it
  int dimensions = 0;
  std::vector<float> values{};  // [inputs, dimensions]; for ranks [inputs]
  std::int64_t tokens = 0;      // of all inputs
  std::int64_t reused_tokens = 0;
  double total_ms = 0.0;  // since Submit
};

struct EmbeddingRequest {
  std::vector<std::vector<std::int32_t>> inputs{};  // tokens, as Embedder encodes them; not empty
  bool ranks = false;  // the inputs are pairs of a query and a document
  bool normalize = true;
  int dimensions = 0;  // 0: all
  std::vector<AdapterUse> adapters{};
  std::function<void(const EmbeddingResult&)> on_done{};  // once
};

enum class EmbeddingId : std::uint64_t {};

struct EmbeddingServiceOptions {
  std::int64_t max_running = 512;  // requests at a time, waiting ones included
  // Of the tokens and the values of these requests together; one request alone may have more.
  std::int64_t max_bytes = std::int64_t{256} << 20;
  int step_ms = 100;  // of a part beside generations and other requests, and of a turn
  // Returns seconds since some moment, by which parts are measured; empty: the system's clock.
  std::function<double()> clock{};
  ComputeTurns* turns = nullptr;  // must outlive the service; null: nobody else computes
};

class EmbeddingService : public ModelService {
 public:
  static std::unique_ptr<EmbeddingService> Make(std::shared_ptr<Embedder> embedder,
                                                const EmbeddingServiceOptions& options);

  // Its const calls may be used on any thread.
  virtual const Embedder& embedder() const = 0;
  // Begins a request. Errors: kCacheFull if too many requests run, or if they need too much memory; kCancelled
  // after StopAccepting.
  virtual Result<EmbeddingId> Submit(EmbeddingRequest request) = 0;
  // Ends a request with kCancelled. Does nothing if it has ended.
  virtual void Cancel(EmbeddingId request) = 0;
};

}  // namespace kvcache::server
