#include "reference_run.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <random>
#include <utility>

#include "support/backend_of_tests.h"

namespace kvcache::exactness {
namespace {

// Shapes of llama models: grouped queries, head counts and head sizes that are not powers of two,
// heads that together exceed the hidden size, one KV head, an odd vocabulary, tied and untied
// output.
struct Shape {
  const char* name;
  const char* flags;
};
constexpr Shape kShapes[] = {
    {"Grouped64",
     "--layers 2 --width 128 --heads 4 --kv-heads 2 --head-dim 64 --ffn 256"
     " --vocab 384 --untied"},
    {"Nine64",
     "--layers 2 --width 96 --heads 9 --kv-heads 3 --head-dim 64 --ffn 160"
     " --vocab 401 --tied"},
    {"Plain80",
     "--layers 1 --width 160 --heads 4 --kv-heads 4 --head-dim 80 --ffn 224"
     " --vocab 512 --untied"},
    {"OneKv32",
     "--layers 3 --width 64 --heads 5 --kv-heads 1 --head-dim 32 --ffn 96"
     " --vocab 333 --tied"},
    {"Wide128",
     "--layers 1 --width 128 --heads 6 --kv-heads 2 --head-dim 128 --ffn 192"
     " --vocab 384 --untied"},
};
// The other families, with all their differences from llama's layers: biases, head norms, a
// temperature, scaled positions, windows, recurrent states, and experts that get no token in a
// pass.
constexpr Shape kFamilies[] = {
    {"Qwen2Yarn",
     "--arch qwen2 --layers 2 --width 96 --heads 6 --kv-heads 2 --head-dim 32 --ffn 160"
     " --vocab 333 --tied --rope-scaling yarn --rope-original-context 128"},
    {"Qwen2Vl",
     "--arch qwen2vl --layers 2 --width 96 --heads 6 --kv-heads 2 --head-dim 32 --ffn 160"
     " --vocab 333 --untied"},
    {"Qwen3",
     "--arch qwen3 --layers 2 --width 64 --heads 4 --kv-heads 1 --head-dim 48 --ffn 96"
     " --vocab 384 --tied"},
    {"Mistral3",
     "--arch mistral3 --layers 2 --width 96 --heads 3 --kv-heads 3 --head-dim 64 --ffn 128"
     " --vocab 333 --untied --rope-scaling yarn --rope-original-context 128"},
    {"LlamaExperts",
     "--arch llama --layers 2 --width 96 --heads 4 --kv-heads 2 --head-dim 32 --ffn 96"
     " --vocab 401 --untied --experts 5 --experts-used 2 --expert-ffn 96"
     " --rope-scaling llama3"},
    {"LlamaWindow",
     "--arch llama --layers 3 --width 64 --heads 4 --kv-heads 2 --head-dim 32 --ffn 96"
     " --vocab 333 --tied --window 75"},
    {"Gemma2",
     "--arch gemma2 --layers 3 --width 64 --heads 4 --kv-heads 2 --head-dim 32 --ffn 96"
     " --vocab 333 --tied --window 75"},
    {"Gemma3",
     "--arch gemma3 --layers 7 --width 64 --heads 4 --kv-heads 1 --head-dim 48 --ffn 96"
     " --vocab 333 --tied --window 75 --rope-scaling linear --rope-base 1000000"},
    {"DeepSeek2",
     "--arch deepseek2 --layers 2 --width 64 --heads 5 --head-dim 32 --ffn 96 --vocab 333 --tied"
     " --kv-rank 64 --q-rank 32 --rope-dims 32 --dense-layers 1 --experts 8 --experts-used 3"
     " --expert-ffn 32 --sigmoid-experts --expert-groups 4 --expert-groups-used 2"
     " --rope-scaling yarn --rope-original-context 128"},
    {"DeepSeek2Old",
     "--arch deepseek2 --layers 2 --width 64 --heads 3 --head-dim 32 --ffn 96 --vocab 384 --untied"
     " --kv-rank 32 --rope-dims 16 --dense-layers 2 --experts 4 --expert-ffn 32 --whole-kv"},
    {"Llama4",
     "--arch llama4 --layers 4 --width 64 --heads 4 --kv-heads 2 --head-dim 32 --ffn 96"
     " --vocab 333 --tied --experts 6 --experts-used 2 --expert-ffn 32 --chunk 100"
     " --temperature-length 50"},
    {"Gemma3n",
     "--arch gemma3n --layers 11 --width 64 --heads 4 --kv-heads 1 --head-dim 32 --ffn 96"
     " --vocab 333 --window 75 --window-pattern 3 --shared-layers 4"},
    {"Gemma4",
     "--arch gemma4 --layers 5 --width 64 --heads 4 --kv-heads 2 --head-dim 64 --ffn 96"
     " --vocab 333 --tied --window 75"},
    {"GptOss",
     "--arch gpt-oss --layers 3 --width 64 --heads 4 --kv-heads 2 --head-dim 32 --ffn 96"
     " --vocab 333 --window 75 --experts 12 --experts-used 3 --expert-ffn 64"
     " --rope-scaling yarn --rope-original-context 128 --rope-factor 32"},
    {"Qwen3Moe",
     "--arch qwen3moe --layers 2 --width 64 --heads 4 --kv-heads 2 --head-dim 32 --ffn 96"
     " --vocab 384 --tied --experts 40 --experts-used 6 --expert-ffn 32"},
    {"Lfm2",
     "--arch lfm2 --layers 3 --width 96 --heads 6 --kv-heads 2 --head-dim 16 --ffn 160"
     " --vocab 333 --tied"},
    {"Lfm2Moe",
     "--arch lfm2moe --layers 3 --width 64 --heads 4 --kv-heads 1 --head-dim 16 --ffn 96"
     " --vocab 333 --untied --experts 9 --experts-used 3 --expert-ffn 64 --dense-layers 1"},
    {"Qwen3Next",
     "--arch qwen3next --layers 3 --width 64 --heads 4 --kv-heads 2 --head-dim 32 --ffn 96"
     " --vocab 384 --tied --experts 10 --experts-used 3 --expert-ffn 32 --state-dim 20"
     " --state-heads 8"},
    {"Qwen35",
     "--arch qwen35 --layers 3 --width 64 --heads 4 --kv-heads 2 --head-dim 32 --ffn 96"
     " --vocab 384 --tied --state-dim 20 --state-heads 8"},
    {"Qwen35Moe",
     "--arch qwen35moe --layers 3 --width 64 --heads 4 --kv-heads 2 --head-dim 32 --ffn 96"
     " --vocab 384 --untied --experts 10 --experts-used 3 --expert-ffn 32 --state-dim 20"
     " --state-heads 8"},
    {"FalconH1",
     "--arch falcon-h1 --layers 2 --width 96 --heads 3 --kv-heads 1 --head-dim 32 --ffn 96"
     " --vocab 333 --untied --state-dim 24"},
    {"Mamba2", "--arch mamba2 --layers 3 --width 96 --vocab 333 --tied --state-dim 24"},
    {"NemotronH",
     "--arch nemotron_h --layers 4 --width 96 --heads 3 --kv-heads 1 --head-dim 32 --ffn 96"
     " --vocab 333 --untied --state-dim 24"},
    {"NemotronHMoe",
     "--arch nemotron_h_moe --layers 3 --width 64 --heads 4 --kv-heads 1 --head-dim 16 --ffn 96"
     " --vocab 333 --untied --experts 9 --experts-used 3 --expert-ffn 64 --latent 32"},
    {"GraniteHybrid",
     "--arch granitehybrid --layers 3 --width 96 --heads 3 --kv-heads 1 --head-dim 32 --ffn 96"
     " --vocab 333 --untied --state-dim 24 --attention-step 3"},
    {"Apertus",
     "--arch apertus --layers 2 --width 64 --heads 4 --kv-heads 2 --head-dim 32 --ffn 96"
     " --vocab 333 --tied --rope-scaling llama3"},
    {"BailingMoe2",
     "--arch bailingmoe2 --layers 2 --width 128 --heads 4 --kv-heads 2 --head-dim 32 --ffn 96"
     " --vocab 333 --experts 8 --experts-used 3 --expert-ffn 32 --dense-layers 1 --expert-groups 4 "
     "--expert-groups-used 2"},
    {"Cohere2",
     "--arch cohere2 --layers 4 --width 96 --heads 3 --kv-heads 1 --head-dim 32 --ffn 96"
     " --vocab 333 --window 75"},
    {"Dots1",
     "--arch dots1 --layers 2 --width 64 --heads 4 --kv-heads 4 --head-dim 32 --ffn 96"
     " --vocab 384 --experts 8 --experts-used 3 --expert-ffn 32 --dense-layers 1"},
    {"Ernie",
     "--arch ernie4_5 --layers 2 --width 64 --heads 4 --kv-heads 2 --head-dim 32 --ffn 96"
     " --vocab 333 --tied"},
    {"ErnieMoe",
     "--arch ernie4_5-moe --layers 2 --width 64 --heads 4 --kv-heads 2 --head-dim 32 --ffn 96"
     " --vocab 333 --tied --experts 8 --experts-used 3 --expert-ffn 32"},
    {"Exaone4",
     "--arch exaone4 --layers 2 --width 64 --heads 4 --kv-heads 2 --head-dim 32 --ffn 96"
     " --vocab 333"},
    {"Glm4",
     "--arch glm4 --layers 2 --width 96 --heads 3 --kv-heads 1 --head-dim 64 --ffn 96"
     " --vocab 333 --tied"},
    {"Glm4Moe",
     "--arch glm4moe --layers 2 --width 64 --heads 4 --kv-heads 2 --head-dim 32 --ffn 96"
     " --vocab 333 --tied --experts 8 --experts-used 3 --expert-ffn 32 --dense-layers 1"},
    {"Granite",
     "--arch granite --layers 2 --width 96 --heads 3 --kv-heads 1 --head-dim 32 --ffn 96"
     " --vocab 333 --tied"},
    {"GraniteMoe",
     "--arch granitemoe --layers 2 --width 64 --heads 4 --kv-heads 2 --head-dim 32 --ffn 96"
     " --vocab 333 --tied --experts 6 --experts-used 2 --expert-ffn 96"},
    {"Hunyuan",
     "--arch hunyuan-dense --layers 2 --width 64 --heads 4 --kv-heads 2 --head-dim 32 --ffn 96"
     " --vocab 333 --tied"},
    {"HunyuanMoe",
     "--arch hunyuan-moe --layers 2 --width 64 --heads 4 --kv-heads 2 --head-dim 32 --ffn 96"
     " --vocab 333 --tied --experts 6 --experts-used 2 --expert-ffn 96"},
    {"MiniMaxM2",
     "--arch minimax-m2 --layers 2 --width 64 --heads 4 --kv-heads 2 --head-dim 48 --ffn 96"
     " --vocab 333 --experts 6 --experts-used 2 --expert-ffn 96"},
    {"Olmo2",
     "--arch olmo2 --layers 4 --width 128 --heads 4 --kv-heads 2 --head-dim 32 --ffn 96"
     " --vocab 333 --window 75 --rope-scaling yarn --rope-original-context 128"},
    {"Phi3",
     "--arch phi3 --layers 2 --width 160 --heads 5 --kv-heads 1 --head-dim 32 --ffn 96"
     " --vocab 333 --tied --window 75 --rope-original-context 128"},
    {"SeedOss",
     "--arch seed_oss --layers 2 --width 64 --heads 4 --kv-heads 2 --head-dim 48 --ffn 96"
     " --vocab 333 --untied"},
    {"SmolLm3",
     "--arch smollm3 --layers 4 --width 64 --heads 4 --kv-heads 2 --head-dim 32 --ffn 96"
     " --vocab 333 --tied"},
    {"Lfm2Heads32",
     "--arch lfm2 --layers 3 --width 96 --heads 3 --kv-heads 1 --head-dim 32 --ffn 160"
     " --vocab 333 --tied"},
};
// A shape whose rows consist of whole super-blocks.
constexpr Shape kWideShape = {
    "Wide256",
    "--layers 2 --width 256 --heads 4 --kv-heads 2 --head-dim 64 --ffn 768 --vocab 400 --tied"};
constexpr int kWide = static_cast<int>(std::size(kShapes) + std::size(kFamilies));
constexpr DType kWeightTypes[] = {DType::kF32, DType::kF16, DType::kBF16, DType::kQ8_0};
constexpr DType kSmallTypes[] = {DType::kQ4_0, DType::kQ4_1, DType::kQ5_0, DType::kQ5_1,
                                 DType::kMXFP4};
constexpr DType kSuperTypes[] = {DType::kQ4_K, DType::kQ5_K, DType::kQ6_K};
constexpr DType kKvTypes[] = {DType::kF32, DType::kF16, DType::kBF16};

const Shape& ShapeOf(const ModelCase& model) {
  if (model.shape == kWide) return kWideShape;
  const auto index = static_cast<std::size_t>(model.shape);
  const std::size_t plain = std::size(kShapes);
  return index < plain ? kShapes[index] : kFamilies[index - plain];
}

std::filesystem::path ModelFolder() {
  const auto folder =
      std::filesystem::temp_directory_path() / ("kvcache_exactness." + std::to_string(getpid()));
  std::filesystem::create_directories(folder);
  return folder;
}

// The folder of this process's models; removed when the process ends.
class Models final : public ::testing::Environment {
 public:
  void TearDown() override { std::filesystem::remove_all(ModelFolder()); }
};
[[maybe_unused]] ::testing::Environment* const kModels =
    ::testing::AddGlobalTestEnvironment(new Models);

bool IsAnswer(std::span<const float> row) {
  bool varies = false;
  for (const float value : row) {
    if (!std::isfinite(value)) return false;
    varies |= value != row.front();
  }
  return varies;
}

int Family(std::string_view name) {
  const auto found =
      std::find_if(std::begin(kFamilies), std::end(kFamilies),
                   [&](const Shape& shape) { return std::string_view(shape.name) == name; });
  return static_cast<int>(std::size(kShapes) + (found - std::begin(kFamilies)));
}

// Caches of block types, alone and mixed with others: in llama's shapes, and in families whose
// scores or masks differ from llama's. The engine's tests check that shapes whose heads are not
// whole blocks are refused.
std::vector<ModelCase> BlockCases() {
  constexpr DType kF16 = DType::kF16, kQ8 = DType::kQ8_0, kQ4 = DType::kQ4_0;
  return {
      {.shape = 0, .weights = DType::kF32, .kv = kQ8, .v = kQ8},
      {.shape = 0, .weights = DType::kQ8_0, .kv = kQ4, .v = kF16},
      {.shape = 1, .weights = DType::kF16, .kv = kQ4, .v = kQ4},
      {.shape = 1, .weights = DType::kQ4_0, .kv = kF16, .v = kQ8},
      {.shape = 3, .weights = DType::kBF16, .kv = kQ8, .v = kQ4},
      {.shape = 3, .weights = DType::kF32, .kv = DType::kF32, .v = kQ4},
      {.shape = 4, .weights = DType::kQ8_0, .kv = kQ4, .v = kQ8},
      {.shape = 4, .weights = DType::kF32, .kv = kQ8, .v = DType::kBF16},
      {.shape = Family("LlamaWindow"), .weights = DType::kF32, .kv = kQ8, .v = kQ4},
      {.shape = Family("Gemma2"), .weights = DType::kQ8_0, .kv = kQ4, .v = kQ4},
      {.shape = Family("Llama4"), .weights = DType::kF32, .kv = kQ4, .v = kQ8},
      {.shape = Family("Gemma4"), .weights = DType::kBF16, .kv = kQ8, .v = kQ8},
      {.shape = Family("GptOss"), .weights = DType::kMXFP4, .kv = kQ8, .v = kQ4},
      {.shape = Family("DeepSeek2"), .weights = DType::kF32, .kv = kQ8, .v = kQ8},
      {.shape = Family("DeepSeek2Old"), .weights = DType::kF32, .kv = kF16, .v = kQ8},
      {.shape = Family("Qwen3Next"), .weights = DType::kF32, .kv = kQ4, .v = kQ4},
      {.shape = Family("GraniteHybrid"), .weights = DType::kQ8_0, .kv = kQ8, .v = kQ8},
  };
}

// The other cache types of models with recurrent layers, so that they have all of them.
std::vector<ModelCase> HybridCases() {
  constexpr DType kBF16 = DType::kBF16, kQ8 = DType::kQ8_0, kQ4 = DType::kQ4_0;
  return {
      {.shape = Family("Lfm2Heads32"), .weights = DType::kF32, .kv = kBF16},
      {.shape = Family("Lfm2Heads32"), .weights = DType::kQ8_0, .kv = kQ8, .v = kQ8},
      {.shape = Family("Lfm2Heads32"), .weights = DType::kF32, .kv = kQ4, .v = kQ4},
      {.shape = Family("Qwen3Next"), .weights = DType::kQ8_0, .kv = kBF16},
      {.shape = Family("Qwen3Next"), .weights = DType::kF32, .kv = kQ8, .v = kQ8},
      {.shape = Family("GraniteHybrid"), .weights = DType::kF32, .kv = kBF16},
      {.shape = Family("GraniteHybrid"), .weights = DType::kF32, .kv = kQ4, .v = kQ4},
  };
}

}  // namespace

std::vector<ModelCase> AllCases() {
  std::vector<ModelCase> cases;
  for (const DType weights : kWeightTypes) {
    for (const DType kv : kKvTypes) {
      const int shape = static_cast<int>(cases.size() % std::size(kShapes));
      cases.push_back({.shape = shape, .weights = weights, .kv = kv});
    }
  }
  // Each other family, with one float type and one block type.
  for (std::size_t i = 0; i < std::size(kFamilies); ++i) {
    const int shape = static_cast<int>(std::size(kShapes) + i);
    const DType floats = i % 2 == 0 ? DType::kF32 : DType::kBF16;
    cases.push_back({.shape = shape, .weights = floats, .kv = DType::kF16});
    cases.push_back({.shape = shape, .weights = DType::kQ8_0, .kv = DType::kF32});
  }
  // The other weight types differ in the linear layers alone, so one cache type each is enough.
  for (const DType weights : kSmallTypes) {
    const int shape = static_cast<int>(cases.size() % std::size(kShapes));
    cases.push_back({.shape = shape, .weights = weights, .kv = DType::kF16});
  }
  for (const DType weights : kSuperTypes) {
    cases.push_back({.shape = kWide, .weights = weights, .kv = DType::kF16});
  }
  for (const std::vector<ModelCase>& more : {BlockCases(), HybridCases()}) {
    cases.insert(cases.end(), more.begin(), more.end());
  }
  return cases;
}

std::string CaseName(const ModelCase& model) {
  return std::string(ShapeOf(model).name) + "_" + std::string(InfoOf(model.weights).name) + "_kv_" +
         std::string(InfoOf(model.kv).name) +
         (model.v ? "_" + std::string(InfoOf(*model.v).name) : "");
}

namespace {

std::string WriteModel(const std::string& name, const std::string& flags) {
  const auto path = ModelFolder() / (name + ".gguf");
  if (!std::filesystem::exists(path)) {
    const bool has_seed = flags.find("--seed") != std::string::npos;
    const std::string command = std::string("'") + KVCACHE_MAKE_MODEL + "' " + flags +
                                (has_seed ? " '" : " --seed 7 '") + path.string() + "' > /dev/null";
    EXPECT_EQ(std::system(command.c_str()), 0) << command;
  }
  return path.string();
}

// Returns the layers' kinds of cache: "sliding, full".
std::string CacheKinds(const ModelInfo& info) {
  std::string kinds;
  for (const LayerMemory& layer : info.memory) {
    const std::string kind(NameOf(layer.kind));
    if (kinds.find(kind) == std::string::npos) kinds += (kinds.empty() ? "" : ", ") + kind;
  }
  return kinds;
}

// Records the architecture in the test's report.
std::unique_ptr<Engine> Open(const std::string& path, const EngineOptions& options,
                             std::unique_ptr<Backend> backend) {
  auto engine = Engine::Open(path, options, std::move(backend));
  if (engine.ok()) {
    ::testing::Test::RecordProperty("architecture", (*engine)->info().architecture);
    ::testing::Test::RecordProperty("cache", CacheKinds((*engine)->info()));
    return std::move(engine).value();
  }
  ADD_FAILURE() << engine.status().message();
  return nullptr;
}

EngineOptions OptionsOf(const ModelCase& model, const RunOptions& options) {
  return {.threads = options.threads,
          .k_type = model.kv,
          .v_type = model.v.value_or(model.kv),
          .context = kContext,
          .max_sequences = options.sequences,
          .prefill_chunk = options.chunk,
          .checkpoints = {.spacing = options.checkpoint_spacing}};
}

}  // namespace

std::string ModelPath(const ModelCase& model) {
  const Shape& shape = ShapeOf(model);
  const std::string type(InfoOf(model.weights).name);
  return WriteModel(std::string(shape.name) + "_" + type,
                    std::string(shape.flags) + " --type " + type);
}

std::unique_ptr<Engine> OpenEngine(const ModelCase& model, const RunOptions& options) {
  return Open(ModelPath(model), OptionsOf(model, options),
              testing::BackendOfTests(options.threads));
}

std::unique_ptr<Engine> OpenFlags(const std::string& name, const std::string& flags,
                                  const RunOptions& options, DType kv) {
  return Open(WriteModel(name, flags),
              {.threads = options.threads,
               .k_type = kv,
               .v_type = kv,
               .context = kContext,
               .max_sequences = options.sequences,
               .prefill_chunk = options.chunk},
              testing::BackendOfTests(options.threads));
}

std::vector<std::int32_t> RandomTokens(const Engine& engine, int count, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(count));
  for (std::int32_t& token : tokens) {
    token = static_cast<std::int32_t>(random() % static_cast<unsigned>(engine.info().vocabulary));
  }
  return tokens;
}

std::vector<float> Evaluate(Engine& engine, std::span<const Entry> entries,
                            std::span<const std::int32_t> parents) {
  std::vector<std::int32_t> tokens, rows;
  std::vector<Position> positions;
  std::vector<SequenceId> sequences;
  for (const Entry& entry : entries) {
    rows.push_back(static_cast<std::int32_t>(rows.size()));
    tokens.push_back(entry.token);
    positions.push_back(entry.position);
    sequences.push_back(entry.sequence);
  }
  const auto vocabulary = static_cast<std::size_t>(engine.info().vocabulary);
  std::vector<float> logits(vocabulary * entries.size());
  Status status = engine.Forward(
      {.tokens = tokens, .positions = positions, .sequences = sequences, .parents = parents});
  if (status.ok()) status = engine.Logits(rows, logits.data());
  EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_TRUE(IsAnswer(std::span(logits).last(vocabulary)))
      << "the logits must be finite and not all equal";
  return status.ok() ? logits : std::vector<float>();
}

std::vector<float> EvaluateAlone(Engine& engine, SequenceId sequence,
                                 std::span<const std::int32_t> tokens) {
  std::vector<float> all;
  std::vector<Entry> chunk;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    chunk.push_back({sequence, static_cast<Position>(i), tokens[i]});
    if (chunk.size() == static_cast<std::size_t>(engine.max_batch()) || i + 1 == tokens.size()) {
      const std::vector<float> rows = Evaluate(engine, chunk);
      all.insert(all.end(), rows.begin(), rows.end());
      chunk.clear();
    }
  }
  return all;
}

const ReferenceRun& ReferenceOf(const ModelCase& model, std::uint32_t seed) {
  static std::map<std::pair<std::string, std::uint32_t>, ReferenceRun> runs;
  ReferenceRun& run = runs[{CaseName(model), seed}];
  if (!run.expected.empty()) return run;
  const auto engine = Open(ModelPath(model), OptionsOf(model, {}), nullptr);
  if (engine == nullptr) return run;
  run.tokens = RandomTokens(*engine, kReferenceTokens, seed);
  run.expected = EvaluateAlone(*engine, SequenceId{0}, run.tokens);
  return run;
}

Position GoBack(Engine& engine, SequenceId sequence, Position length) {
  const Position kept = *engine.cache().PrepareRestore(sequence, length);
  EXPECT_LE(kept, length);
  const Status removed = engine.cache().Remove(sequence, kept, kEndOfSequence);
  EXPECT_TRUE(removed.ok()) << removed.message();
  return kept;
}

void ExpectSameRow(const Engine& engine, std::span<const float> got, std::size_t row,
                   std::span<const float> expected, std::size_t expected_row,
                   const std::string& what) {
  const auto vocabulary = static_cast<std::size_t>(engine.info().vocabulary);
  ASSERT_LE((row + 1) * vocabulary, got.size()) << what;
  ASSERT_LE((expected_row + 1) * vocabulary, expected.size()) << what;
  const float* a = got.data() + row * vocabulary;
  const float* b = expected.data() + expected_row * vocabulary;
  if (std::memcmp(a, b, vocabulary * sizeof(float)) == 0) return;
  std::size_t differing = 0;
  float largest = 0;
  for (std::size_t i = 0; i < vocabulary; ++i) {
    differing += std::memcmp(a + i, b + i, sizeof(float)) != 0;
    largest = std::max(largest, std::abs(a[i] - b[i]));
  }
  ADD_FAILURE() << what << ": " << differing << " of " << vocabulary << " logits differ, by up to "
                << largest;
}

std::unique_ptr<Snapshot> TakeSnapshot(Cache& cache, SequenceId sequence, Position begin,
                                       Position end) {
  auto snapshot = cache.snapshots()->TakeSnapshot(sequence, begin, end);
  EXPECT_TRUE(snapshot.ok()) << snapshot.status().message();
  return snapshot.ok() ? std::move(*snapshot) : nullptr;
}

std::vector<std::byte> ExportSnapshot(Cache& cache, const Snapshot& snapshot) {
  const auto size = cache.snapshots()->ExportSize(snapshot);
  EXPECT_TRUE(size.ok()) << size.status().message();
  std::vector<std::byte> bytes(static_cast<std::size_t>(size.ok() ? *size : 0));
  const Status status = cache.snapshots()->Export(snapshot, bytes);
  EXPECT_TRUE(status.ok()) << status.message();
  return bytes;
}

std::optional<Transaction> BeginTransaction(Cache& cache, const SequenceLength& member,
                                            Position max_tokens) {
  auto transaction = Transaction::Begin({&cache}, {member}, {.max_tokens = max_tokens});
  EXPECT_TRUE(transaction.ok()) << transaction.status().message();
  if (!transaction.ok()) return std::nullopt;
  return std::move(*transaction);
}

void RestoreInEveryWay(Engine& engine, Engine& other, SequenceId sequence, Snapshot& snapshot,
                       const std::function<void(Engine&)>& go_on) {
  const auto restore = [&](Engine& to, const Snapshot& from) {
    ASSERT_TRUE(to.cache().Remove(sequence, 0, kEndOfSequence).ok());
    const Status status = to.cache().snapshots()->Restore(sequence, &from, from.end());
    ASSERT_TRUE(status.ok()) << status.message();
    go_on(to);
  };
  restore(engine, snapshot);
  const Status status = engine.cache().snapshots()->Materialize(snapshot);
  ASSERT_TRUE(status.ok()) << status.message();
  restore(engine, snapshot);
  auto imported = other.cache().snapshots()->Import(ExportSnapshot(engine.cache(), snapshot));
  ASSERT_TRUE(imported.ok()) << imported.status().message();
  restore(other, **imported);
}

}  // namespace kvcache::exactness
