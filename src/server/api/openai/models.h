// GET /v1/models: the list of models in OpenAI's and Anthropic's shape.
#pragma once

#include "server/route.h"

namespace kvcache::server::openai {

void Models(const ServerContext& context);
// The model that the path names.
void OneModel(const ServerContext& context);

}  // namespace kvcache::server::openai
