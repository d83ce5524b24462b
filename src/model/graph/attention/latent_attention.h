// Multi-head latent attention: the keys and values of all of a token's heads come from one vector c
// of `kv_rank` values and one vector t of `rope_dim` rotated values.
//
//   [c | t] = Wa x, c normed      q_h = [n_h | r_h]
//   score of head h = n_h · (Wk_h c) + r_h · t
//
// In the absorbed form, Wk moves to the query. Heads then attend over c itself, and the cache holds
// [c | t] once for all heads: one KV head, whose key is [c | t] and whose value is c.
//
//   score  = (Wk_hᵀ n_h) · c + r_h · t
//   answer = Wv_h Σ p c
//
// Old files have Wk and Wv in one matrix, by rows of c. Its blocks cannot be transposed exactly, so
// for those files the cache holds every head's expanded key and value.
//
// Source: DeepSeek-AI, "DeepSeek-V2" (2024), section 2.1 and appendix C; tensor names as llama.cpp
// writes them.
// Thread safety: one thread at a time.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "model/graph/pass.h"
#include "model/load/weights.h"

namespace kvcache {

struct LatentShape {
  std::int64_t hidden_size = 0;
  std::int64_t heads = 0;
  std::int64_t q_rank = 0;    // values of the queries' latent vector; 0: queries are Wq x
  std::int64_t kv_rank = 0;   // values of c
  std::int64_t nope_dim = 0;  // values of n_h, which are not rotated
  std::int64_t rope_dim = 0;  // values of r_h and t
  std::int64_t v_dim = 0;     // values of a head's answer
  bool absorbed = true;
  float norm_epsilon = 0.0f;

  std::int64_t q_dim() const { return nope_dim + rope_dim; }
  // Returns the shape of a token's keys and values in the cache.
  KvShape kv() const;
  // Returns the index of the first rotated value of a cached key.
  int rope_first() const { return static_cast<int>(absorbed ? kv_rank : nope_dim); }
};

class LatentAttention {
 public:
  // Takes PREFIXattn_q and so on. Errors name the tensor.
  static Result<LatentAttention> Load(WeightReader& reader, const std::string& prefix,
                                      const LatentShape& shape);

  // out [hidden_size, batch] = the attention result for h [hidden_size, batch]; out may be h.
  // `rope` is the rotation of r_h and t; its `first` is ignored.
  void Run(Pass& pass, int layer, const TensorView& h, RopeParams rope, float scale,
           const TensorView& out);

 private:
  void Queries(Pass& pass, const TensorView& h, RopeParams rope, const TensorView& q) const;
  void Latents(Pass& pass, const TensorView& h, RopeParams rope, const TensorView& latent,
               const TensorView& normed) const;
  void Absorbed(Pass& pass, int layer, const TensorView& q, const TensorView& latent, float scale,
                const TensorView& answer);
  void Expanded(Pass& pass, int layer, const TensorView& q, const TensorView& latent,
                const TensorView& c, float scale, const TensorView& answer) const;
  // y[:, :, h] = matrix h of `stack` · x[:, :, h]
  void EachHead(Pass& pass, const LinearWeight& stack, const TensorView& x, const TensorView& y);

  LatentShape shape_;
  std::optional<Projection> q_down_;
  Norm q_norm_;
  Projection q_up_;
  Projection down_;                            // x → [c | t]
  Norm norm_;                                  // of c
  std::unique_ptr<LinearWeight> k_up_, v_up_;  // absorbed form: one matrix per head
  Projection kv_up_;                           // expanded form
  Projection o_;
  std::vector<LinearOutput> outputs_;  // [heads]
  std::vector<LinearGroup> groups_;    // [heads]
};

}  // namespace kvcache
