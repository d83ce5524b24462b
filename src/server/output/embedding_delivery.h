// Submits a request for embeddings or ranks, and sends its answer, or its error.
//
// Thread safety: any thread.
#pragma once

#include <functional>
#include <string>

#include "server/route.h"

namespace kvcache::server {

// Adapters are those of the context. `write` makes the body of the answer, on the service's thread. A client that leaves ends the work.
void DeliverEmbeddings(const EmbeddingContext& context, EmbeddingRequest request,
                       std::function<std::string(const EmbeddingResult& result)> write);

// Refuses inputs of which one is too long, in the words that clients of the API look for, and other wrong fields.
void RefuseInputs(const EmbeddingContext& context, const Fields& fields, bool too_long);

}  // namespace kvcache::server
