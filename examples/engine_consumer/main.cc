// Opens a model, generates the beginning of a story, and ends it in another way.
//
// usage: engine_consumer MODEL.gguf
#include <cstdio>

#include "kvcache_engine/engine.h"
#include "kvcache_engine/generate.h"
#include "kvcache_engine/scheduler.h"

namespace {

kvcache::Status Run(const char* path) {
  KVCACHE_ASSIGN_OR_RETURN(const auto engine, kvcache::Engine::Open(path, {}));
  KVCACHE_ASSIGN_OR_RETURN(const auto scheduler, kvcache::Scheduler::Make(*engine, {}));
  kvcache::GenerateRequest request{.max_tokens = 24};
  KVCACHE_ASSIGN_OR_RETURN(request.prompt, engine->Tokenize("Once upon a time"));
  KVCACHE_ASSIGN_OR_RETURN(const auto begin, Generate(*scheduler, request));

  // The second prompt begins with the story, whose keys and values are not computed again.
  KVCACHE_ASSIGN_OR_RETURN(const auto more,
                           engine->Tokenize("\nThe end", kvcache::TextPlace::kContinuation));
  request.prompt.insert(request.prompt.end(), begin.tokens.begin(), begin.tokens.end());
  request.prompt.insert(request.prompt.end(), more.begin(), more.end());
  KVCACHE_ASSIGN_OR_RETURN(const auto end, Generate(*scheduler, request));
  std::printf("story:%s\nfork: %s\n", begin.text.c_str(), end.text.c_str());
  return kvcache::Status::Ok();
}

}  // namespace

int main(int argc, char** argv) {
  const kvcache::Status status = Run(argc > 1 ? argv[1] : "story.gguf");
  if (!status.ok()) std::fprintf(stderr, "engine_consumer: %s\n", status.message().c_str());
  return status.ok() ? 0 : 1;
}
