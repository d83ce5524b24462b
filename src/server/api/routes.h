// The routes of each API, in its namespace, and of all.
#pragma once

#include <vector>

#include "server/route.h"

namespace kvcache::server {

namespace openai {
std::vector<Route> Routes();  // chat completions, completions, embeddings and models
}
namespace responses {
std::vector<Route> Routes();  // OpenAI's responses: made, stored and made short
}
namespace anthropic {
std::vector<Route> Routes();  // messages
}
namespace ollama {
std::vector<Route> Routes();  // generate, chat, embed, and models
}
namespace llamacpp {
std::vector<Route> Routes();  // llama.cpp's own: completions, infill and properties
}
namespace rerank {
std::vector<Route> Routes();  // ranks of documents, as Jina's and Cohere's
}
namespace operate {
std::vector<Route> Routes();  // for operators: health, metrics, tokens, templates, reuse, sequences
}
namespace page {
std::vector<Route> Routes();  // the page that shows the cache: its files, and what it reads
}

std::vector<Route> AllRoutes();

}  // namespace kvcache::server
