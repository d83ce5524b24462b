// Families whose layers are attention and a feed-forward part, each a set of choices: BlockForm.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "make_model/architecture.h"
#include "make_model/decoder.h"

namespace kvcache::make_model {

enum class KeyNorms : std::uint8_t { kNone, kHeads, kRows };
enum class ExpertKeys : std::uint8_t {
  kPlain,    // a softmax router
  kBiased,   // the same with a bias for the choice
  kSigmoid,  // sigmoids, a bias, and the keys of DeepSeek V3
};

struct BlockForm {
  std::string_view name;
  KeyNorms key_norms = KeyNorms::kNone;
  bool biases = false;     // of q, k and v
  bool fused_qkv = false;  // one matrix
  bool fused_up = false;   // gate and up in one matrix
  bool ungated = false;    // no gate
  bool pre_norms = true;
  bool post_norms = false;
  bool parallel = false;  // one norm for both branches
  bool layer_norms = false;
  std::string_view ffn_norm = "ffn_norm.weight";
  bool rotates_half = false;          // of each head
  bool all_heads_have_keys = false;   // as many KV heads as heads
  std::optional<Output> output = {};  // the only form that the family has
  ExpertKeys experts = ExpertKeys::kPlain;
  bool wide_experts = false;  // an expert is as wide as a dense feed-forward part
  bool shared_expert = false;
  const char* head_norm = "nextn.shared_head_norm";                    // a draft head's last norm
  void (*add_more)(const Shape& shape, GgufHeader& header) = nullptr;  // keys of the family alone
};

void AddBlockMetadata(const BlockForm& form, const Shape& shape, GgufHeader& header);
std::vector<TensorSpec> BlockTensors(const BlockForm& form, const Shape& shape);

// The functions of an Architecture.
template <const BlockForm& kForm>
void AddBlocks(const Shape& shape, GgufHeader& header) {
  AddBlockMetadata(kForm, shape, header);
}
template <const BlockForm& kForm>
std::vector<TensorSpec> TensorsOfBlocks(const Shape& shape) {
  return BlockTensors(kForm, shape);
}

void AddApertus(const Shape& shape, GgufHeader& header);
void AddBailing(const Shape& shape, GgufHeader& header);
void AddCohere2(const Shape& shape, GgufHeader& header);
void AddErnieMoe(const Shape& shape, GgufHeader& header);
void AddExaone4(const Shape& shape, GgufHeader& header);
void AddGranite(const Shape& shape, GgufHeader& header);
void AddGraniteMoe(const Shape& shape, GgufHeader& header);
void AddHunyuan(const Shape& shape, GgufHeader& header);
void AddHunyuanMoe(const Shape& shape, GgufHeader& header);
void AddMiniMax(const Shape& shape, GgufHeader& header);
void AddOlmo2(const Shape& shape, GgufHeader& header);
void AddPhi3(const Shape& shape, GgufHeader& header);

inline constexpr BlockForm kApertus = {.name = "apertus",
                                       .key_norms = KeyNorms::kHeads,
                                       .ungated = true,
                                       .output = Output::kUntied,
                                       .add_more = AddApertus};
inline constexpr BlockForm kBailingMoe2 = {.name = "bailingmoe2",
                                           .key_norms = KeyNorms::kHeads,
                                           .fused_qkv = true,
                                           .rotates_half = true,
                                           .output = Output::kUntied,
                                           .experts = ExpertKeys::kSigmoid,
                                           .shared_expert = true,
                                           .head_norm = "layer_output_norm",
                                           .add_more = AddBailing};
inline constexpr BlockForm kCohere2 = {.name = "cohere2",
                                       .parallel = true,
                                       .layer_norms = true,
                                       .output = Output::kTied,
                                       .add_more = AddCohere2};
inline constexpr BlockForm kDots1 = {.name = "dots1",
                                     .key_norms = KeyNorms::kHeads,
                                     .all_heads_have_keys = true,
                                     .output = Output::kUntied,
                                     .experts = ExpertKeys::kSigmoid,
                                     .shared_expert = true};
inline constexpr BlockForm kErnie = {.name = "ernie4_5"};
inline constexpr BlockForm kErnieMoe = {.name = "ernie4_5-moe",
                                        .experts = ExpertKeys::kBiased,
                                        .shared_expert = true,
                                        .add_more = AddErnieMoe};
inline constexpr BlockForm kExaone4 = {.name = "exaone4",
                                       .key_norms = KeyNorms::kHeads,
                                       .pre_norms = false,
                                       .post_norms = true,
                                       .output = Output::kUntied,
                                       .add_more = AddExaone4};
inline constexpr BlockForm kGlm4 = {
    .name = "glm4", .biases = true, .fused_up = true, .post_norms = true, .rotates_half = true};
inline constexpr BlockForm kGlm4Moe = {.name = "glm4moe",
                                       .key_norms = KeyNorms::kHeads,
                                       .biases = true,
                                       .ffn_norm = "post_attention_norm.weight",
                                       .rotates_half = true,
                                       .experts = ExpertKeys::kSigmoid,
                                       .shared_expert = true};
inline constexpr BlockForm kGranite = {.name = "granite", .add_more = AddGranite};
inline constexpr BlockForm kGraniteMoe = {
    .name = "granitemoe", .wide_experts = true, .shared_expert = true, .add_more = AddGraniteMoe};
inline constexpr BlockForm kHunyuan = {
    .name = "hunyuan-dense", .key_norms = KeyNorms::kHeads, .add_more = AddHunyuan};
inline constexpr BlockForm kHunyuanMoe = {.name = "hunyuan-moe",
                                          .key_norms = KeyNorms::kHeads,
                                          .wide_experts = true,
                                          .shared_expert = true,
                                          .add_more = AddHunyuanMoe};
inline constexpr BlockForm kMiniMaxM2 = {.name = "minimax-m2",
                                         .key_norms = KeyNorms::kRows,
                                         .rotates_half = true,
                                         .output = Output::kUntied,
                                         .experts = ExpertKeys::kBiased,
                                         .wide_experts = true,
                                         .add_more = AddMiniMax};
inline constexpr BlockForm kOlmo2 = {.name = "olmo2",
                                     .key_norms = KeyNorms::kRows,
                                     .pre_norms = false,
                                     .post_norms = true,
                                     .output = Output::kUntied,
                                     .add_more = AddOlmo2};
inline constexpr BlockForm kPhi3 = {
    .name = "phi3", .fused_qkv = true, .fused_up = true, .add_more = AddPhi3};
inline constexpr BlockForm kSeedOss = {
    .name = "seed_oss", .biases = true, .ffn_norm = "post_attention_norm.weight"};
inline constexpr BlockForm kSmolLm3 = {.name = "smollm3"};

}  // namespace kvcache::make_model
