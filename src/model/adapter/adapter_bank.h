// The adapters of a model: their matrices beside the model's own, and what the tokens of a pass use of them.
//
//   loading   SetSites, Add for each adapter, Reserve
//   a pass    Begin, then Apply after each product, and ApplyEmbedding after the embedding
//
// Apply adds to each token's column, for each of its adapters in ascending order,
//
//   t = A x,  t = t · s,  y = y + B t,   s = scale · alpha / r, rounded once
//
// Each step is a column's own (docs/design/exactness.md), so a token's result depends on its own adapters only. Tokens
// without adapters are not touched.
//
// Thread safety: one thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "kvcache/backend.h"
#include "kvcache/status.h"
#include "kvcache_engine/adapter.h"
#include "model/adapter/adapter_file.h"
#include "model/graph/activation_buffer.h"
#include "model/load/spellings.h"
#include "model/load/weights.h"

namespace kvcache {

// A model that adapters are added to.
struct AdapterBase {
  std::string_view architecture;
  std::int64_t hidden_size = 0;
  std::int64_t embedding_rows = 0;
};

class AdapterBank {
 public:
  // Names the matrices that adapters may change. Those of kEmbeddingTensor are left out: the embedding's pair is the
  // other way round, and a tied output does not have it.
  void SetSites(std::vector<LinearSite> sites);

  // Adds an adapter, which gets the next number. `file` must outlive the bank. Errors name the tensor:
  // kInvalidArgument for another architecture; kCorrupt for a shape that does not fit the base; kNotFound for a tensor
  // that the base lacks or adapters cannot change; kUnsupported for a type of values. The bank is then as before.
  Status Add(const AdapterFile& file, const AdapterBase& base, Backend& backend);
  int size() const { return static_cast<int>(adapters_.size()); }

  // Allocates what passes of up to `batch` tokens need, if there are adapters. Errors: kOutOfMemory.
  Status Reserve(Backend& backend, std::int64_t batch);
  std::int64_t scratch_bytes() const { return scratch_.bytes(); }
  std::size_t owned_bytes() const { return owned_bytes_; }  // of matrices outside the file

  // Says what each token of a pass has [batch]; empty: none has any. The spans need not live longer.
  // REQUIRES: Reserve for as many tokens.
  void Begin(std::span<const AdapterUses> of_token);
  // Returns whether any token has adapters.
  bool is_used() const { return !runs_.empty(); }

  // A product whose results the adapters change: y [outputs, columns].
  struct Product {
    LinearOutput output;
    std::int64_t step = 0;  // the matrix of a column of expert e is output.matrix + e · step
  };

  // Adds to each product y of x [inputs, batch] what the columns' tokens have.
  Status Apply(Backend& backend, const TensorView& x, std::span<const Product> products);
  // The same for columns that are the tokens `rows` of the pass.
  Status ApplyRows(Backend& backend, const TensorView& x, std::span<const std::int32_t> rows,
                   const Product& product);
  // The same for columns that all have `uses`, outside a pass. REQUIRES: Reserve.
  Status ApplyAll(Backend& backend, const TensorView& x, AdapterUses uses, const Product& product);
  // The same for slots of experts: column i belongs to token token_of_slot[i] and expert expert_of_slot[i]. If x has one
  // column, all slots read it.
  Status ApplySlots(Backend& backend, const TensorView& x,
                    std::span<const std::int32_t> token_of_slot,
                    std::span<const std::int32_t> expert_of_slot,
                    std::span<const Product> products);
  // The same for the rows of the embedding: y [hidden_size, batch].
  Status ApplyEmbedding(Backend& backend, std::span<const std::int32_t> tokens,
                        const TensorView& y);

 private:
  // A pair that is bound to a matrix, or to a stack.
  struct Bound {
    const LinearWeight* base = nullptr;
    const LinearWeight* a = nullptr;
    const LinearWeight* b = nullptr;
    std::int64_t rank = 0;
    std::int64_t shared_a = 1;  // matrices of b for each matrix of a
    double factor = 1.0;        // alpha / r
  };
  struct Embedding {
    TensorView a{};          // [r, vocabulary]
    PlacedTensors placed{};  // what `a` refers to
    std::unique_ptr<LinearWeight> b{};
    double factor = 1.0;
  };
  struct Adapter {
    const Spelling* spelling = nullptr;  // of the names in its file
    std::vector<Bound> bound;            // by `base`
    std::vector<std::unique_ptr<LinearWeight>> weights;
    std::optional<Embedding> embedding;
    std::int64_t max_rank = 0;
    std::int64_t max_outputs = 0;

    const Bound* Find(const LinearWeight* base) const;
  };
  // Columns [begin, end) have one set of adapters, and one expert.
  struct Run {
    std::int64_t begin = 0, end = 0;
    std::int32_t set = 0;
    std::int32_t expert = 0;
  };
  struct Set {
    std::size_t begin = 0, end = 0;  // in uses_
  };
  // A part of a product: some columns of one pair.
  struct Item {
    const LinearWeight *a, *b;
    std::int64_t matrix_a, matrix_b, rank;
    float factor;
    TensorView x, y;
  };

  Status Bind(const AdapterPair& pair, double factor, const AdapterBase& base, Backend& backend,
              Adapter& adapter) const;
  Status BindEmbedding(const AdapterPair& pair, double factor, const AdapterBase& base,
                       Backend& backend, Adapter& adapter) const;
  std::int32_t SetOf(AdapterUses uses);
  void AddRun(std::vector<Run>& runs, std::int64_t column, std::int32_t set, std::int32_t expert);
  // Returns the scale of an adapter in a set; 0: the set does not have it.
  float ScaleIn(const Set& set, int adapter) const;
  Status ApplyRuns(Backend& backend, const TensorView& x, std::span<const Run> runs,
                   std::span<const Product> products);
  // Queues a run's columns of one product; runs the queue when it is full.
  Status Queue(Backend& backend, const Bound& bound, float scale, const TensorView& x,
               const Run& run, const Product& product);
  Status RunQueue(Backend& backend);
  Status ScaleQueue(Backend& backend) const;

  std::vector<LinearSite> sites_;
  std::vector<Adapter> adapters_;
  std::size_t owned_bytes_ = 0;
  std::int64_t max_rank_ = 0;
  std::int64_t max_outputs_ = 0;

  // Of the pass.
  std::vector<AdapterUse> uses_;
  std::vector<Set> sets_;
  std::vector<std::int32_t> set_of_token_;  // -1: it has no adapters
  std::vector<Run> runs_;                   // of the tokens
  std::vector<Run> other_runs_;             // scratch: of rows or slots

  ActivationBuffer scratch_;  // t, then d, of kColumns columns
  std::vector<Item> items_;
  std::int64_t queued_ = 0;  // columns of items_
  std::vector<LinearOutput> outputs_;
  std::vector<LinearGroup> groups_;
};

}  // namespace kvcache
