// The import of one Hugging Face model: what the families of architectures share.
//
// Thread safety: one thread at a time.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/strings.h"
#include "convert/hf_config.h"
#include "convert/hf_planner.h"
#include "convert/hf_tokenizer.h"
#include "gguf/gguf_writer.h"
#include "kvcache/status.h"

namespace kvcache {

struct HfImport {
  std::string architecture;  // general.architecture
  const HfConfig& config;    // of the text model
  const HfConfig& outer;     // config.json; the same for models of text alone
  HfPlanner& planner;
  GgufHeader& header;
  HfFallbackKind fallback = HfFallbackKind::kScores;
  std::string hf_class{};                         // the first of `architectures`
  std::string embedding = "embed_tokens.weight";  // the tensor
  bool embeds = false;                            // texts end as the post-processor says

  // Set ARCHITECTURE.key.
  void Set(std::string_view key, std::int64_t value) {
    header.SetUint32(StrCat(architecture, ".", key), static_cast<std::uint32_t>(value));
  }
  void SetFloat(std::string_view key, double value) {
    header.SetFloat32(StrCat(architecture, ".", key), static_cast<float>(value));
  }
  void SetString(std::string_view key, std::string_view value) {
    header.SetString(StrCat(architecture, ".", key), value);
  }
};

// The sizes that all decoders have. 0 as a default: the key is required.
struct HfSizes {
  std::int64_t layers = 0;
  std::int64_t hidden = 0;
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;  // 0: as many as heads
  std::int64_t head_dim = 0;  // 0: hidden / heads
  std::int64_t ffn = 0;
  std::int64_t context = 0;
  double epsilon = 1e-6;
  std::int64_t vocabulary = 0;   // rows of the embedding; from the tensor
  bool ffn_by_layer = false;     // the family sets feed_forward_length
  std::int64_t draft_heads = 0;  // blocks behind the layers
};

// Reads the sizes. `defaults` has those of the family's class. Errors name the key.
Result<HfSizes> ReadHfSizes(const HfImport& import, const HfSizes& defaults);

// Sets the keys of the sizes, without those of heads and rotation.
void SetHfSizes(HfImport& import, const HfSizes& sizes);
// Sets the keys of heads of one size.
void SetHfHeads(HfImport& import, const HfSizes& sizes);

// Refuses another activation than `expected`.
Status CheckHfActivation(const HfConfig& config, std::string_view key, std::string_view expected);

// Refuses a list that has anything in it.
Status CheckNoHfList(const HfConfig& config, std::string_view key);

// Plans embedding, last norm and output. `tied_default`: what a config.json without
// tie_word_embeddings means. Refuses it if the weights say something else.
Status PlanHfEnds(HfImport& import, const HfSizes& sizes, bool tied_default,
                  ValueChange norm_change = ValueChange::kNone);

// The rotation of one kind of layers.
struct HfRope {
  double base = 10000.0;
  std::string type = "default";
  double rotated = 1.0;  // share of a head
  HfConfig settings;     // has factor and the like
};

// Reads rope_parameters (of `layer_type`, if it has objects for types of layers), or rope_theta and
// rope_scaling. Errors name the key.
Result<HfRope> ReadHfRope(const HfConfig& config, double default_base,
                          std::string_view layer_type = "");

// Sets the keys rope.freq_base and rope.scaling.*, and plans rope_freqs.weight for type llama3.
// Errors: kUnsupported: a type that GGUF files or this program do not know.
Status AddHfRope(HfImport& import, const HfRope& rope, std::int64_t rotated_dims,
                 std::int64_t context);

// The families. Each sets the keys of its architecture and plans the tensors.
Status PlanHfLlama(HfImport& import);            // also mistral, qwen2, qwen3 and their mixtures
Status PlanHfGemma(HfImport& import);            // gemma2, gemma3, gemma-embedding
Status PlanHfBert(HfImport& import);             // bert: BERT, RoBERTa, XLM-RoBERTa
Status PlanHfNomicBert(HfImport& import);        // nomic-bert
Status PlanHfModernBert(HfImport& import);       // modern-bert
Status PlanHfGemma4(HfImport& import);           // gemma4
Status PlanHfGemma4Assistant(HfImport& import);  // gemma4-assistant
Status PlanHfQwen3Next(HfImport& import);        // qwen3next

}  // namespace kvcache
