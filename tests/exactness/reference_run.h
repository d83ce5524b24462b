// What the exactness checks share: random-weight models, and a model's logits as a single
// sequence gets them in one plain way, to which every other way must be equal in bits.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/engine_impl.h"

namespace kvcache::exactness {

// A model and cache to check. Shapes are what goes wrong: see kShapes in the .cc file.
struct ModelCase {
  int shape = 0;
  DType weights = DType::kF32;
  DType kv = DType::kF32;
  std::optional<DType> v = {};  // of the cache's values alone
};

// Every pair of weight and cache type, each with one of llama's shapes; the other families; and
// caches of block types.
std::vector<ModelCase> AllCases();
std::string CaseName(const ModelCase& model);  // letters, digits and underscores

// Writes the model if it is not there yet, and returns its path. Adds a test failure if the
// tool fails.
std::string ModelPath(const ModelCase& model);

struct RunOptions {
  int threads = 1;
  int chunk = 64;
  int sequences = 1;
  int checkpoint_spacing = 40;  // of recurrent states, so that texts go past several
};

// Room for kContext tokens per sequence: past two of attention's splits of 256.
inline constexpr int kContext = 640;

// REQUIRES: inside a test; adds a failure and returns null when the model does not open.
std::unique_ptr<Engine> OpenEngine(const ModelCase& model, const RunOptions& options);

// The same for a model of these flags of kvcache-make-model, in F32 with a cache of one type.
std::unique_ptr<Engine> OpenFlags(const std::string& name, const std::string& flags,
                                  const RunOptions& options = {.threads = 2, .chunk = 512},
                                  DType kv = DType::kF32);

// `count` tokens that depend on `seed` alone. REQUIRES: count <= kContext.
std::vector<std::int32_t> RandomTokens(const Engine& engine, int count, std::uint32_t seed);

// A token of a sequence, and the logits that followed it.
struct Entry {
  SequenceId sequence{};
  Position position = 0;
  std::int32_t token = 0;
};

// One forward pass; logits [vocabulary] of every entry, in order. Adds a test failure and
// returns nothing on an error. With parents the entries are drafts.
std::vector<float> Evaluate(Engine& engine, std::span<const Entry> entries,
                            std::span<const std::int32_t> parents = {});

// Logits [vocabulary, tokens.size()] of an only sequence, in the engine's chunks.
std::vector<float> EvaluateAlone(Engine& engine, SequenceId sequence,
                                 std::span<const std::int32_t> tokens);

// Drops all from `length` on, and as much before it as the cache must let go of, so that the next
// token can be evaluated: at the position returned.
Position GoBack(Engine& engine, SequenceId sequence, Position length);

// Adds a test failure unless row `row` of `got` has the bits of row `expected_row` of
// `expected`; `what` says which token that is.
void ExpectSameRow(const Engine& engine, std::span<const float> got, std::size_t row,
                   std::span<const float> expected, std::size_t expected_row,
                   const std::string& what);

}  // namespace kvcache::exactness
