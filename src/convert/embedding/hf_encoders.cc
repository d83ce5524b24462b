// Encoders of embeddings: BERT, RoBERTa and XLM-RoBERTa (bert), Nomic BERT (nomic-bert), ModernBERT (modern-bert), and the
// rerankers made of the first and the last of them.
//
// Positions of RoBERTa's kinds begin behind that of the padding, so the file's table lacks the first rows. A vector of an
// encoder is no function of the pooler, which is left out unless it is part of a reranker.
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "convert/hf_import.h"

namespace kvcache {
namespace {

constexpr std::int64_t kMaxEncoderSize = std::int64_t{1} << 20;
constexpr std::int64_t kMaxEncoderContext = std::int64_t{1} << 28;
constexpr HfRange kNormEpsilon{0.0, 0.5, "a number from 0 to 0.5"};
constexpr std::uint32_t kRankPooling = 4;

struct EncoderSizes {
  std::int64_t layers = 0, hidden = 0, heads = 0, ffn = 0;
  std::int64_t context = 0;
  std::int64_t types = 1;  // of tokens
  double epsilon = 1e-12;
  std::int64_t vocabulary = 0;  // rows of the embedding; from the tensor
};

// The keys of config.json.
struct SizeNames {
  const char* layers = "num_hidden_layers";
  const char* hidden = "hidden_size";
  const char* heads = "num_attention_heads";
  const char* ffn = "intermediate_size";
  const char* epsilon = "layer_norm_eps";
};

bool IsReranker(const HfImport& import) {
  return import.hf_class.ends_with("ForSequenceClassification");
}

Result<EncoderSizes> ReadSizes(HfImport& import, const SizeNames& names, double epsilon) {
  const HfConfig& config = import.config;
  EncoderSizes sizes;
  KVCACHE_ASSIGN_OR_RETURN(sizes.layers, config.Int(names.layers, 1, 4096));
  KVCACHE_ASSIGN_OR_RETURN(sizes.hidden, config.Int(names.hidden, 1, kMaxEncoderSize));
  KVCACHE_ASSIGN_OR_RETURN(sizes.heads, config.Int(names.heads, 1, kMaxEncoderSize));
  if (sizes.hidden % (2 * sizes.heads) != 0) {
    return config.Refuse(names.hidden,
                         StrCat("must be a multiple of 2 times the ", sizes.heads, " heads"));
  }
  KVCACHE_ASSIGN_OR_RETURN(sizes.ffn, config.Int(names.ffn, 1, 8 * kMaxEncoderSize));
  KVCACHE_ASSIGN_OR_RETURN(sizes.epsilon, config.FloatOr(names.epsilon, epsilon, kNormEpsilon));
  sizes.vocabulary = import.planner.RowsOf(import.embedding);
  KVCACHE_ASSIGN_OR_RETURN(const std::int64_t vocabulary,
                           config.IntOr("vocab_size", sizes.vocabulary, 1, kMaxEncoderContext));
  if (sizes.vocabulary == 0 || vocabulary == sizes.vocabulary) return sizes;
  return config.Refuse("vocab_size", StrCat("must be ", sizes.vocabulary,
                                            ", the number of rows of ", import.embedding));
}

void SetSizes(HfImport& import, const EncoderSizes& sizes) {
  import.Set("block_count", sizes.layers);
  import.Set("context_length", sizes.context);
  import.Set("embedding_length", sizes.hidden);
  import.Set("feed_forward_length", sizes.ffn);
  import.Set("attention.head_count", sizes.heads);
  import.SetFloat("attention.layer_norm_epsilon", sizes.epsilon);
  import.header.SetBool(import.architecture + ".attention.causal", false);
  import.header.SetUint32("tokenizer.ggml.token_type_count",
                          static_cast<std::uint32_t>(sizes.types));
}

// Refuses a key that is true.
Status CheckFalse(const HfConfig& config, std::initializer_list<const char*> keys) {
  for (const char* key : keys) {
    KVCACHE_ASSIGN_OR_RETURN(const bool is_set, config.BoolOr(key, false));
    if (is_set) return config.Refuse(key, "must be false");
  }
  return Status::Ok();
}

Status CheckGelu(const HfConfig& config, const char* key) {
  const auto found = config.StringOr(key, "gelu");
  if (!found.ok()) return found.status();
  for (const char* known : {"gelu", "gelu_new", "gelu_pytorch_tanh"}) {
    if (*found == known) return Status::Ok();
  }
  return config.Refuse(key, "must be gelu, gelu_new or gelu_pytorch_tanh");
}

// Names the file's tensors after those of the published weights.
class Tensors {
 public:
  Tensors(HfImport& import, std::int64_t hidden) : planner_(import.planner), hidden_(hidden) {}

  void Norm(const std::string& name, const std::string& source) {
    // Old checkpoints have other names.
    const bool old = planner_.Has(source + ".gamma");
    planner_.Vector(name + ".weight", source + (old ? ".gamma" : ".weight"), hidden_);
    planner_.Vector(name + ".bias", source + (old ? ".beta" : ".bias"), hidden_);
  }
  void PlainNorm(const std::string& name, const std::string& source) {
    planner_.Vector(name + ".weight", source + ".weight", hidden_);
  }
  void Matrix(const std::string& name, const std::string& source, std::int64_t inputs,
              std::int64_t outputs) {
    planner_.Matrix(name + ".weight", source + ".weight", inputs, outputs);
  }
  void Biased(const std::string& name, const std::string& source, std::int64_t inputs,
              std::int64_t outputs) {
    Matrix(name, source, inputs, outputs);
    planner_.Vector(name + ".bias", source + ".bias", outputs);
  }
  // Plans a table in f32, without its first rows.
  void Table(const std::string& name, const std::string& source, std::int64_t rows,
             std::int64_t first = 0) {
    PlanOptions options{.source_rows = rows + first, .f32 = true};
    if (first > 0) options.source_row = [first](std::int64_t row) { return row + first; };
    planner_.Matrix(name + ".weight", source + ".weight", hidden_, rows, std::move(options));
  }

 private:
  HfPlanner& planner_;
  const std::int64_t hidden_;
};

// Sets the pooling of a reranker, and plans its last matrix.
Status PlanScores(HfImport& import, Tensors& tensors, const std::string& source,
                  std::int64_t hidden) {
  const std::int64_t labels = import.planner.RowsOf(source + ".weight");
  if (labels < 1) {
    return Corrupt(StrCat(import.config.place(), ": ", import.hf_class, " needs a matrix ", source,
                          ".weight, which the weights do not have"));
  }
  tensors.Biased("cls.output", source, hidden, labels);
  import.Set("pooling_type", kRankPooling);
  KVCACHE_ASSIGN_OR_RETURN(const auto names, import.config.Object("id2label"));
  std::vector<std::string> texts;
  for (std::int64_t i = 0; i < labels; ++i) {
    const std::string number = StrCat(i);
    const std::string otherwise = "LABEL_" + number;
    if (!names) {
      texts.push_back(otherwise);
      continue;
    }
    KVCACHE_ASSIGN_OR_RETURN(texts.emplace_back(), names->StringOr(number, otherwise));
  }
  import.header.SetStrings(import.architecture + ".classifier.output_labels", texts);
  return Status::Ok();
}

void PlanBertLayer(Tensors& tensors, const EncoderSizes& sizes, std::int64_t layer) {
  const std::string from = StrCat("encoder.layer.", layer, ".");
  const std::string to = StrCat("blk.", layer, ".");
  const std::int64_t size = sizes.hidden;
  tensors.Biased(to + "attn_q", from + "attention.self.query", size, size);
  tensors.Biased(to + "attn_k", from + "attention.self.key", size, size);
  tensors.Biased(to + "attn_v", from + "attention.self.value", size, size);
  tensors.Biased(to + "attn_output", from + "attention.output.dense", size, size);
  tensors.Norm(to + "attn_output_norm", from + "attention.output.LayerNorm");
  tensors.Biased(to + "ffn_up", from + "intermediate.dense", size, sizes.ffn);
  tensors.Biased(to + "ffn_down", from + "output.dense", sizes.ffn, size);
  tensors.Norm(to + "layer_output_norm", from + "output.LayerNorm");
}

Status PlanBertHead(HfImport& import, Tensors& tensors, std::int64_t hidden, bool is_roberta) {
  if (!IsReranker(import) || is_roberta) {
    import.planner.Ignore("pooler.dense.weight");
    import.planner.Ignore("pooler.dense.bias");
  }
  if (!IsReranker(import)) return Status::Ok();
  tensors.Biased("cls", is_roberta ? "classifier.dense" : "pooler.dense", hidden, hidden);
  return PlanScores(import, tensors, is_roberta ? "classifier.out_proj" : "classifier", hidden);
}

// Returns the layers that have no window: the first of every so many.
Result<std::int64_t> ReadModernPeriod(const HfConfig& config, std::int64_t layers) {
  KVCACHE_ASSIGN_OR_RETURN(const std::int64_t period,
                           config.IntOr("global_attn_every_n_layers", 3, 1, 1 << 20));
  KVCACHE_ASSIGN_OR_RETURN(const std::vector<std::string> types, config.Strings("layer_types"));
  if (!config.Has("layer_types")) return period;
  for (std::int64_t i = 0; i < layers; ++i) {
    const char* const expected = i % period == 0 ? "full_attention" : "sliding_attention";
    const bool fits = std::ssize(types) == layers && types[static_cast<std::size_t>(i)] == expected;
    if (fits) continue;
    return config.Refuse("layer_types",
                         StrCat("must be full_attention for the first of every ", period,
                                " layers and sliding_attention for the others"));
  }
  return period;
}

Status AddModernRopes(HfImport& import) {
  const HfConfig& config = import.config;
  KVCACHE_ASSIGN_OR_RETURN(double global,
                           config.FloatOr("global_rope_theta", 160000.0, kHfPositive));
  KVCACHE_ASSIGN_OR_RETURN(double local, config.FloatOr("local_rope_theta", 10000.0, kHfPositive));
  KVCACHE_ASSIGN_OR_RETURN(const auto parameters, config.Object("rope_parameters"));
  if (parameters) {
    for (const auto& [type, base] :
         {std::pair{"full_attention", &global}, std::pair{"sliding_attention", &local}}) {
      KVCACHE_ASSIGN_OR_RETURN(const HfRope rope, ReadHfRope(config, *base, type));
      if (rope.type != "default") return rope.settings.Refuse("rope_type", "must be default");
      *base = rope.base;
    }
  }
  import.SetFloat("rope.freq_base", global);
  if (local != 10000.0) import.SetFloat("rope.freq_base_swa", local);
  return Status::Ok();
}

void PlanModernLayer(Tensors& tensors, const EncoderSizes& sizes, std::int64_t layer) {
  const std::string from = StrCat("layers.", layer, ".");
  const std::string to = StrCat("blk.", layer, ".");
  const std::int64_t size = sizes.hidden;
  if (layer > 0) tensors.PlainNorm(to + "attn_norm", from + "attn_norm");  // else the embedding's
  tensors.Matrix(to + "attn_qkv", from + "attn.Wqkv", size, 3 * size);
  tensors.Matrix(to + "attn_output", from + "attn.Wo", size, size);
  tensors.PlainNorm(to + "ffn_norm", from + "mlp_norm");
  tensors.Matrix(to + "ffn_up", from + "mlp.Wi", size, 2 * sizes.ffn);
  tensors.Matrix(to + "ffn_down", from + "mlp.Wo", sizes.ffn, size);
}

Status CheckNomic(const HfConfig& config) {
  KVCACHE_RETURN_IF_ERROR(CheckHfActivation(config, "activation_function", "swiglu"));
  KVCACHE_RETURN_IF_ERROR(
      CheckFalse(config, {"causal", "prenorm", "use_rms_norm", "qkv_proj_bias", "mlp_fc1_bias",
                          "mlp_fc2_bias", "rotary_emb_interleaved", "parallel_block"}));
  KVCACHE_ASSIGN_OR_RETURN(const std::int64_t experts, config.IntOr("num_experts", 0, 0, 1 << 16));
  if (experts > 0) return config.Refuse("num_experts", "must be 0");
  KVCACHE_ASSIGN_OR_RETURN(const double share,
                           config.FloatOr("rotary_emb_fraction", 1.0, kHfNotNegative));
  return share == 1.0 ? Status::Ok() : config.Refuse("rotary_emb_fraction", "must be 1");
}

}  // namespace

Status PlanHfBert(HfImport& import) {
  const HfConfig& config = import.config;
  import.embedding = "embeddings.word_embeddings.weight";
  KVCACHE_RETURN_IF_ERROR(CheckGelu(config, "hidden_act"));
  KVCACHE_RETURN_IF_ERROR(CheckHfActivation(config, "position_embedding_type", "absolute"));
  KVCACHE_RETURN_IF_ERROR(CheckFalse(config, {"is_decoder", "add_cross_attention"}));
  KVCACHE_ASSIGN_OR_RETURN(EncoderSizes sizes, ReadSizes(import, {}, 1e-12));
  KVCACHE_ASSIGN_OR_RETURN(sizes.types, config.IntOr("type_vocab_size", 2, 1, 1 << 16));
  const bool is_roberta = import.hf_class.find("Roberta") != import.hf_class.npos ||
                          import.hf_class.find("RoBERTa") != import.hf_class.npos;
  std::int64_t first = 0;
  if (is_roberta) {
    KVCACHE_ASSIGN_OR_RETURN(first, config.IntOr("pad_token_id", 1, 0, 1 << 16));
    ++first;
  }
  KVCACHE_ASSIGN_OR_RETURN(const std::int64_t positions,
                           config.Int("max_position_embeddings", first + 1, kMaxEncoderContext));
  sizes.context = positions - first;
  SetSizes(import, sizes);
  Tensors tensors(import, sizes.hidden);
  import.planner.Matrix("token_embd.weight", import.embedding, sizes.hidden, sizes.vocabulary);
  tensors.Table("token_types", "embeddings.token_type_embeddings", sizes.types);
  tensors.Table("position_embd", "embeddings.position_embeddings", sizes.context, first);
  tensors.Norm("token_embd_norm", "embeddings.LayerNorm");
  import.planner.Ignore("embeddings.position_ids");
  for (std::int64_t layer = 0; layer < sizes.layers; ++layer) PlanBertLayer(tensors, sizes, layer);
  return PlanBertHead(import, tensors, sizes.hidden, is_roberta);
}

Status PlanHfNomicBert(HfImport& import) {
  const HfConfig& config = import.config;
  import.embedding = "embeddings.word_embeddings.weight";
  KVCACHE_RETURN_IF_ERROR(CheckNomic(config));
  constexpr SizeNames kNames{"n_layer", "n_embd", "n_head", "n_inner", "layer_norm_epsilon"};
  KVCACHE_ASSIGN_OR_RETURN(EncoderSizes sizes, ReadSizes(import, kNames, 1e-12));
  KVCACHE_ASSIGN_OR_RETURN(sizes.types, config.IntOr("type_vocab_size", 2, 1, 1 << 16));
  // Beyond the positions of its training the published code rotates otherwise.
  KVCACHE_ASSIGN_OR_RETURN(const std::int64_t trained,
                           config.IntOr("max_trained_positions", 2048, 1, kMaxEncoderContext));
  KVCACHE_ASSIGN_OR_RETURN(const std::int64_t positions,
                           config.IntOr("n_positions", trained, 1, kMaxEncoderContext));
  sizes.context = std::min(positions, trained);
  KVCACHE_ASSIGN_OR_RETURN(const double base,
                           config.FloatOr("rotary_emb_base", 10000.0, kHfPositive));
  SetSizes(import, sizes);
  import.SetFloat("rope.freq_base", base);
  const std::int64_t size = sizes.hidden;
  Tensors tensors(import, size);
  import.planner.Matrix("token_embd.weight", import.embedding, size, sizes.vocabulary);
  tensors.Table("token_types", "embeddings.token_type_embeddings", sizes.types);
  tensors.Norm("token_embd_norm", "emb_ln");
  for (std::int64_t layer = 0; layer < sizes.layers; ++layer) {
    const std::string from = StrCat("encoder.layers.", layer, ".");
    const std::string to = StrCat("blk.", layer, ".");
    tensors.Matrix(to + "attn_qkv", from + "attn.Wqkv", size, 3 * size);
    tensors.Matrix(to + "attn_output", from + "attn.out_proj", size, size);
    tensors.Norm(to + "attn_output_norm", from + "norm1");
    tensors.Matrix(to + "ffn_up", from + "mlp.fc11", size, sizes.ffn);
    tensors.Matrix(to + "ffn_gate", from + "mlp.fc12", size, sizes.ffn);
    tensors.Matrix(to + "ffn_down", from + "mlp.fc2", sizes.ffn, size);
    tensors.Norm(to + "layer_output_norm", from + "norm2");
  }
  return Status::Ok();
}

Status PlanHfModernBert(HfImport& import) {
  const HfConfig& config = import.config;
  import.embedding = "embeddings.tok_embeddings.weight";
  KVCACHE_ASSIGN_OR_RETURN(const std::string activation,
                           config.StringOr("hidden_activation", "gelu"));
  if (activation != "silu") KVCACHE_RETURN_IF_ERROR(CheckGelu(config, "hidden_activation"));
  KVCACHE_RETURN_IF_ERROR(
      CheckFalse(config, {"attention_bias", "mlp_bias", "norm_bias", "classifier_bias"}));
  constexpr SizeNames kNames{.epsilon = "norm_eps"};
  KVCACHE_ASSIGN_OR_RETURN(EncoderSizes sizes, ReadSizes(import, kNames, 1e-5));
  KVCACHE_ASSIGN_OR_RETURN(sizes.types, config.IntOr("type_vocab_size", 1, 1, 1 << 16));
  KVCACHE_ASSIGN_OR_RETURN(sizes.context,
                           config.IntOr("max_position_embeddings", 8192, 1, kMaxEncoderContext));
  SetSizes(import, sizes);
  if (activation == "silu") import.SetString("hidden_activation", activation);
  KVCACHE_ASSIGN_OR_RETURN(const std::int64_t window,
                           config.IntOr("local_attention", 128, 1, std::int64_t{1} << 30));
  import.Set("attention.sliding_window", window);
  KVCACHE_ASSIGN_OR_RETURN(const std::int64_t period, ReadModernPeriod(config, sizes.layers));
  if (period != 3) import.Set("attention.sliding_window_pattern", period);
  KVCACHE_RETURN_IF_ERROR(AddModernRopes(import));
  const std::int64_t size = sizes.hidden;
  Tensors tensors(import, size);
  import.planner.Matrix("token_embd.weight", import.embedding, size, sizes.vocabulary);
  tensors.PlainNorm("token_embd_norm", "embeddings.norm");
  for (std::int64_t layer = 0; layer < sizes.layers; ++layer) {
    PlanModernLayer(tensors, sizes, layer);
  }
  tensors.PlainNorm("output_norm", "final_norm");
  if (!IsReranker(import)) return Status::Ok();
  // The scores are those of the mean of all states.
  KVCACHE_ASSIGN_OR_RETURN(const std::string pooling, config.StringOr("classifier_pooling", "cls"));
  if (pooling != "mean") return config.Refuse("classifier_pooling", "must be mean");
  tensors.Matrix("cls", "head.dense", size, size);
  tensors.PlainNorm("cls.norm", "head.norm");
  return PlanScores(import, tensors, "classifier", size);
}

}  // namespace kvcache
