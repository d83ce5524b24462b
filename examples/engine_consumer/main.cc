// Opens a model, generates the beginning of a story, and continues a fork of it.
//
// usage: engine_consumer MODEL.gguf
#include <cstdio>

#include "kvcache_engine/engine.h"
#include "kvcache_engine/generate.h"
#include "kvcache_engine/session.h"

namespace {

kvcache::Status Run(const char* path) {
  KVCACHE_ASSIGN_OR_RETURN(const auto engine, kvcache::Engine::Open(path, {.max_sequences = 2}));
  kvcache::Session story(*engine, kvcache::SequenceId{0});
  kvcache::Session fork(*engine, kvcache::SequenceId{1});
  kvcache::GenerateRequest request{.max_tokens = 24};
  KVCACHE_ASSIGN_OR_RETURN(request.prompt, engine->Tokenize("Once upon a time"));
  KVCACHE_ASSIGN_OR_RETURN(const auto begin, Generate(story, *engine, request));

  // The fork shares the story's keys and values. Nothing is copied or computed again.
  KVCACHE_RETURN_IF_ERROR(fork.ForkFrom(story, story.position()));
  KVCACHE_ASSIGN_OR_RETURN(request.prompt,
                           engine->Tokenize("\nThe end", kvcache::TextPlace::kContinuation));
  KVCACHE_ASSIGN_OR_RETURN(const auto end, Generate(fork, *engine, request));
  std::printf("story:%s\nfork: %s\n", begin.text.c_str(), end.text.c_str());
  return kvcache::Status::Ok();
}

}  // namespace

int main(int argc, char** argv) {
  const kvcache::Status status = Run(argc > 1 ? argv[1] : "story.gguf");
  if (!status.ok()) std::fprintf(stderr, "engine_consumer: %s\n", status.message().c_str());
  return status.ok() ? 0 : 1;
}
