// kvcache-make-model: writes a model file of random weights. See README.md here.

#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <fstream>
#include <iterator>
#include <map>
#include <optional>
#include <string>

#include "make_model/make_model.h"
#include "platform/output/standard_output.h"

namespace kvcache::make_model {
namespace {

// The flags that replace a preset's sizes if they are given.
struct Flags {
  std::string preset = "tiny";
  std::optional<int> layers, hidden_size, heads, kv_heads, head_dim, ffn, vocab, context;
  std::optional<int> rope_original_context, window, window_pattern, experts, experts_used,
      expert_ffn;
  std::optional<float> rope_base, rope_factor;
  RopeScaling rope_scaling = RopeScaling::kNone;
  FamilyShape family;
  bool tied = false;
  bool untied = false;
};

template <typename T>
void Replace(const std::optional<T>& flag, T& value) {
  if (flag.has_value()) value = *flag;
}

Result<Shape> ShapeOf(const Flags& flags) {
  KVCACHE_ASSIGN_OR_RETURN(Shape shape, PresetShape(flags.preset));
  Replace(flags.layers, shape.layers);
  Replace(flags.hidden_size, shape.hidden_size);
  Replace(flags.heads, shape.heads);
  Replace(flags.kv_heads, shape.kv_heads);
  if (flags.heads.has_value() && !flags.kv_heads.has_value()) shape.kv_heads = shape.heads;
  if (flags.hidden_size.has_value() || flags.heads.has_value()) {
    shape.head_dim = shape.heads > 0 ? shape.hidden_size / shape.heads : 0;
  }
  Replace(flags.head_dim, shape.head_dim);
  Replace(flags.ffn, shape.ffn);
  Replace(flags.vocab, shape.vocab);
  Replace(flags.context, shape.context);
  Replace(flags.rope_base, shape.rope_base);
  shape.rope_scaling = flags.rope_scaling;
  Replace(flags.rope_factor, shape.rope_factor);
  Replace(flags.rope_original_context, shape.rope_original_context);
  Replace(flags.window, shape.window);
  Replace(flags.window_pattern, shape.window_pattern);
  Replace(flags.experts, shape.experts);
  Replace(flags.experts_used, shape.experts_used);
  Replace(flags.expert_ffn, shape.expert_ffn);
  shape.family = flags.family;
  if (flags.tied) shape.output = Output::kTied;
  if (flags.untied) shape.output = Output::kUntied;
  return shape;
}

void AddSizes(CLI::App& app, Flags& flags) {
  app.add_option("--preset", flags.preset, "tiny (default) or 1b; other flags replace its sizes");
  app.add_option("--layers", flags.layers, "layers");
  app.add_option("--width", flags.hidden_size, "hidden size: values per token between layers");
  app.add_option("--heads", flags.heads, "query heads");
  app.add_option("--kv-heads", flags.kv_heads, "key and value heads (default: as --heads)");
  app.add_option("--head-dim", flags.head_dim, "values per head (default: width / heads)");
  app.add_option("--ffn", flags.ffn, "values between the feed-forward matrices");
  app.add_option("--vocab", flags.vocab, "tokens, at least 259");
  app.add_option("--context", flags.context, "context length in the metadata");
  app.add_option("--rope-base", flags.rope_base, "base of the rotation's frequencies");
  auto* tied = app.add_flag("--tied", flags.tied, "the embedding is also the output matrix");
  app.add_flag("--untied", flags.untied, "a separate output matrix")->excludes(tied);
}

void AddRopeAndExperts(CLI::App& app, Flags& flags) {
  const std::map<std::string, RopeScaling> scalings = {{"none", RopeScaling::kNone},
                                                       {"linear", RopeScaling::kLinear},
                                                       {"llama3", RopeScaling::kLlama3},
                                                       {"yarn", RopeScaling::kYarn}};
  app.add_option("--rope-scaling", flags.rope_scaling, "none (default), linear, llama3 or yarn")
      ->transform(CLI::CheckedTransformer(scalings).description(""));
  app.add_option("--rope-factor", flags.rope_factor, "factor of the RoPE scaling");
  app.add_option("--rope-original-context", flags.rope_original_context,
                 "original context of the scaling, for llama3 and yarn");
  app.add_option("--window", flags.window,
                 "tokens that a query sees in a layer with a window (default: the family's own)");
  app.add_option("--window-pattern", flags.window_pattern,
                 "N: every N-th layer has no window, 0: all have one (default: the family's own)");
  app.add_option("--experts", flags.experts, "experts of each layer (default: none)");
  app.add_option("--experts-used", flags.experts_used, "experts of each token");
  app.add_option("--expert-ffn", flags.expert_ffn, "values between an expert's matrices");
}

void AddFamilies(CLI::App& app, FamilyShape& family) {
  app.add_option("--chunk", family.chunk, "llama4: tokens of a chunk (default: no key)");
  app.add_option("--expert-step", family.expert_step,
                 "llama4: N: every N-th layer has experts (default: 2)");
  app.add_option("--temperature-length", family.temperature_length,
                 "llama4: tokens per step of the queries' factor (default: no key)");
  app.add_option("--kv-rank", family.kv_rank, "deepseek2: values of the latent vector (64)");
  app.add_option("--q-rank", family.q_rank,
                 "deepseek2: values of the queries' latent vector (none)");
  app.add_option("--rope-dims", family.rope_dims,
                 "deepseek2: rotated values of a head, besides --head-dim (32)");
  app.add_option("--dense-layers", family.dense_layers, "deepseek2: layers without experts (0)");
  app.add_option("--shared-experts", family.shared_experts,
                 "deepseek2: shared experts of each layer (1)");
  app.add_option("--expert-groups", family.expert_groups, "deepseek2: groups of experts (none)");
  app.add_option("--expert-groups-used", family.expert_groups_used,
                 "deepseek2: groups that a token uses (1)");
  app.add_flag("--sigmoid-experts", family.sigmoid_experts, "deepseek2: sigmoid router, as in V3");
  app.add_option("--decoder-layers", family.decoder_layers,
                 "t5: layers of the decoder (as --layers)");
  app.add_flag(
      "--ungated", family.ungated,
      "t5: feed-forward parts with ReLU; jina-bert-v2: the form for code; modern-bert: SiLU");
  app.add_flag("--whole-kv", family.whole_kv, "deepseek2: keys and values as in old files");
  app.add_option("--latent", family.latent,
                 "nemotron_h_moe: values that experts read (default: the hidden size)");
  app.add_option(
      "--attention-step", family.attention_step,
      "lfm2, qwen3next, qwen35, granitehybrid: N: every N-th layer is attention (default: 2)");
  app.add_option("--nextn-layers", family.nextn_layers,
                 "llama, qwen2, qwen3, deepseek2, qwen3next, qwen35: draft heads (default: 0)");
  app.add_option("--target-width", family.target_size,
                 "gemma4-assistant: hidden size of the model it drafts for (twice --width)");
  app.add_option(
      "--shared-layers", family.shared_layers,
      "gemma3n: last layers that share keys and values (default: those behind the 20th)");
  app.add_option("--state-dim", family.state_dim,
                 "qwen3next, granitehybrid: values of a key of the state (default: 32)");
  app.add_option("--state-heads", family.state_heads,
                 "qwen3next, granitehybrid: heads of the state (default: 8)");
  app.add_option("--state-groups", family.state_groups,
                 "qwen3next, granitehybrid: groups of heads that share keys (default: 2)");
  app.add_option("--pooling", family.pooling,
                 "encoders, qwen3: 1 mean, 2 cls, 3 last, 4 rank (default: no key)");
  app.add_option("--labels", family.labels, "encoders, qwen3: scores of a reranker (none)");
  app.add_option("--dense", family.dense,
                 "gemma-embedding: values between the dense layers (no such layers)");
  app.add_flag("--turns", family.rotates, "granitehybrid: queries and keys are rotated");
}

Status Make(const Flags& flags, const std::string& type, Request& request,
            const std::string& path) {
  KVCACHE_ASSIGN_OR_RETURN(request.shape, ShapeOf(flags));
  KVCACHE_ASSIGN_OR_RETURN(const WeightScheme scheme, ParseWeightScheme(type));
  request.type = scheme.type;
  request.mix = scheme.mix;
  return MakeModel(request, path);
}

std::string Contents(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Returns the exit status after a help text.
int CheckOutput() {
  const Status status = FlushStandardOutput();
  if (!status.ok()) std::fprintf(stderr, "kvcache-make-model: %s\n", status.message().c_str());
  return status.ok() ? 0 : 1;
}

int Main(int argc, char** argv) {
  CLI::App app("Writes a GGUF model file of random weights.");
  Request request;
  Flags flags;
  std::string path;
  std::string type = "f32";
  app.add_option("out,--out", path, "the file to write")->required();
  app.add_option("--arch", request.architecture, "architecture (default: llama)");
  app.add_option("--type", type, "type of the matrices: f32 (default), f16, bf16, q8_0, q4_k_m, …");
  app.add_option("--seed", request.seed, "seed of the random numbers (default: 1)");
  app.add_option("--threads", request.threads, "default: one per core; changes no bytes");
  app.add_option("--control", request.control_tokens,
                 "a control token's text, in place of one of the last tokens; several times")
      ->allow_extra_args(false);
  std::string template_path;
  app.add_option("--chat-template", template_path, "a file with the model's chat template")
      ->check(CLI::ExistingFile);
  AddSizes(app, flags);
  AddRopeAndExperts(app, flags);
  AddFamilies(app, flags.family);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? CheckOutput() : 2;
  }
  if (!template_path.empty()) request.chat_template = Contents(template_path);
  const Status status = Make(flags, type, request, path);
  if (status.ok()) return 0;
  std::fprintf(stderr, "kvcache-make-model: %s\n", status.message().c_str());
  return 1;
}

}  // namespace
}  // namespace kvcache::make_model

int main(int argc, char** argv) {
  try {
    return kvcache::make_model::Main(argc, argv);
  } catch (const std::exception& error) {  // std::bad_alloc and the like, from libraries
    std::fprintf(stderr, "kvcache-make-model: %s\n", error.what());
    return 1;
  }
}
