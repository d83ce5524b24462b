// LoRA adapters: small matrices that change what a model says, beside its weights.
//
//   auto engine = *Engine::Open("m.gguf", {.adapters = {{.path = "style.gguf"}}});
//   scheduler->Submit({.prompt = tokens, .adapters = {{.adapter = 0, .scale = 0.5f}}});
//
// An adapter adds scale · alpha / r · B (A x) to the product W x of each matrix that it has a pair for. Design:
// docs/design/adapters.md.
//
// Thread safety: values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace kvcache {

// An adapter that an engine opens.
struct EngineAdapter {
  std::string path;  // of a GGUF file; messages begin with it
  // The file's bytes; null: they are read from `path`.
  std::shared_ptr<const std::vector<std::byte>> image{};
  float scale =
      1.0f;  // for programs, which requests without a choice of their own get; sequences begin without adapters
};

// An adapter that an engine has.
struct AdapterInfo {
  std::string path{};
  std::string digest{};    // SHA-256 of its bytes: 64 hexadecimal digits
  std::int64_t bytes = 0;  // of the file
  std::int64_t pairs = 0;  // of matrices
  std::int64_t max_rank = 0;
  double alpha = 0.0;  // 0: the file has none, and the scale alone is the factor
  float scale = 1.0f;  // of EngineAdapter
};

// Scales are from -kMaxAdapterScale to kMaxAdapterScale: larger ones only make values that are no numbers.
inline constexpr float kMaxAdapterScale = 1e4f;

// One adapter of a sequence or a request.
struct AdapterUse {
  int adapter = 0;  // the number in EngineOptions::adapters, from 0 on
  float scale = 1.0f;

  bool operator==(const AdapterUse&) const = default;
};

// The adapters of a sequence: ascending numbers, each once, scales that are in range and not 0.
using AdapterUses = std::span<const AdapterUse>;

}  // namespace kvcache
