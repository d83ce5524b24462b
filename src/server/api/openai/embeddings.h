// OpenAI's embeddings.
#pragma once

#include "server/route.h"

namespace kvcache::server::openai {

void CreateEmbeddings(const EmbeddingContext& context, const Json& body);

}  // namespace kvcache::server::openai
