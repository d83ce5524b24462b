// The common part of the exactness checks: models with random weights, and reference logits. The
// reference run has one sequence, one thread and chunks of 64; all other runs must give the same
// bits.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/engine_impl.h"
#include "kvcache/transaction.h"

namespace kvcache::exactness {

// A model and cache to check. kShapes in the .cc file has the shapes, chosen to be unusual.
struct ModelCase {
  int shape = 0;
  DType weights = DType::kF32;
  DType kv = DType::kF32;
  std::optional<DType> v = {};  // the cache's values, if they differ from its keys
};

// Returns every pair of weight and cache type, each with one of llama's shapes; the other families;
// and caches of block types.
std::vector<ModelCase> AllCases();
// Returns a name of letters, digits and underscores.
std::string CaseName(const ModelCase& model);

// Returns the model's path and writes the file on the first call. Adds a test failure if the tool
// fails.
std::string ModelPath(const ModelCase& model);

struct RunOptions {
  int threads = 1;
  int chunk = 64;
  int sequences = 1;
  int checkpoint_spacing = 40;  // tokens between recurrent states; texts span several
};

// Tokens of context per sequence: more than two of attention's splits of 256.
inline constexpr int kContext = 640;

// Opens the model. REQUIRES: inside a test. On an error, adds a test failure and returns null.
std::unique_ptr<Engine> OpenEngine(const ModelCase& model, const RunOptions& options);

// The same for a model made with these flags of kvcache-make-model, in F32, with a cache of one
// type. Without --seed the seed is 7.
std::unique_ptr<Engine> OpenFlags(const std::string& name, const std::string& flags,
                                  const RunOptions& options = {.threads = 2, .chunk = 512},
                                  DType kv = DType::kF32);

// Returns `count` tokens that depend on `seed` alone. REQUIRES: count <= kContext.
std::vector<std::int32_t> RandomTokens(const Engine& engine, int count, std::uint32_t seed);

// A token of a sequence, at a position.
struct Entry {
  SequenceId sequence{};
  Position position = 0;
  std::int32_t token = 0;
};

// Runs one forward pass and returns the logits [vocabulary, entries.size()] of all entries, in
// order. With `parents` the entries are drafts. On an error, adds a test failure and returns an
// empty vector.
std::vector<float> Evaluate(Engine& engine, std::span<const Entry> entries,
                            std::span<const std::int32_t> parents = {});

// Returns the logits [vocabulary, tokens.size()] of one sequence, evaluated in the engine's chunks.
std::vector<float> EvaluateAlone(Engine& engine, SequenceId sequence,
                                 std::span<const std::int32_t> tokens);

// A text of random tokens, and the logits of the reference run.
struct ReferenceRun {
  std::vector<std::int32_t> tokens;
  std::vector<float> expected;  // [vocabulary, tokens.size()]
};

inline constexpr int kReferenceTokens = 600;

// Returns a run of kReferenceTokens, computed on the first call for the model and seed. REQUIRES: inside a
// test. On an error, adds a test failure and returns an empty run.
const ReferenceRun& ReferenceOf(const ModelCase& model, std::uint32_t seed);

// Removes all tokens from `length` on, and as many before it as the cache needs for the next token
// to be evaluated. Returns the next token's position.
Position GoBack(Engine& engine, SequenceId sequence, Position length);

// Adds a test failure unless row `row` of `got` has the same bits as row `expected_row` of
// `expected`. `what` describes the token in the failure.
void ExpectSameRow(const Engine& engine, std::span<const float> got, std::size_t row,
                   std::span<const float> expected, std::size_t expected_row,
                   const std::string& what);

// Return a snapshot, its bytes, and a transaction of one sequence. REQUIRES: inside a test. On an
// error, they add a test failure.
std::unique_ptr<Snapshot> TakeSnapshot(Cache& cache, SequenceId sequence, Position begin,
                                       Position end);
std::vector<std::byte> ExportSnapshot(Cache& cache, const Snapshot& snapshot);
std::optional<Transaction> BeginTransaction(Cache& cache, const SequenceLength& member,
                                            Position max_tokens);

// Restores a sequence of `engine` from the snapshot, lazy and materialised, and a sequence of `other`
// from its bytes. Calls go_on(engine) after each, which evaluates the next tokens and checks them.
void RestoreInEveryWay(Engine& engine, Engine& other, SequenceId sequence, Snapshot& snapshot,
                       const std::function<void(Engine&)>& go_on);

}  // namespace kvcache::exactness
