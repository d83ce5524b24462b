#include "convert/peft/peft_adapter.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <utility>

#include "base/errors.h"
#include "base/strings.h"
#include "convert/hf_directory.h"
#include "convert/peft/peft_config.h"
#include "convert/peft/peft_modules.h"
#include "gguf/gguf_writer.h"
#include "model_store/bounded_json.h"
#include "safetensors/safetensors.h"
#include "tensor/quantize.h"

namespace kvcache {
namespace {

constexpr std::size_t kMaxPeftConfigBytes = std::size_t{1} << 20;
constexpr const char* kPeftConfigName = "adapter_config.json";
constexpr const char* kPeftTensorsName = "adapter_model.safetensors";
constexpr std::string_view kWrapper = "base_model.model.";
// PEFT adds the base's own weights to adapters of the embedding and of the output.
constexpr std::string_view kBaseSuffix = ".base_layer.weight";

enum class Half : std::uint8_t { kA, kB };

struct HalfName {
  std::string_view suffix;
  Half half;
  bool is_embedding;
};
constexpr HalfName kHalves[] = {
    {".lora_A.weight", Half::kA, false},
    {".lora_B.weight", Half::kB, false},
    {".lora_embedding_A", Half::kA, true},
    {".lora_embedding_B", Half::kB, true},
};

// A module's pair. A is [r, inputs] and B [outputs, r], slowest first.
struct ModulePair {
  const SafeTensor* a = nullptr;
  const SafeTensor* b = nullptr;
  bool is_embedding = false;

  std::int64_t rank() const { return a->shape[0]; }
  std::int64_t inputs() const { return a->shape[1]; }
  std::int64_t outputs() const { return b->shape[0]; }
};

// Returns the name of a module in the text model, as the import of models names tensors.
std::string_view TextModule(std::string_view module) {
  for (const std::string_view prefix :
       {"model.language_model.", "language_model.model.", "language_model.", "model."}) {
    if (module.starts_with(prefix)) return module.substr(prefix.size());
  }
  return module;
}

std::optional<GgmlType> FloatType(std::string_view name) {
  if (name == "F32") return GgmlType::kF32;
  if (name == "F16") return GgmlType::kF16;
  if (name == "BF16") return GgmlType::kBF16;
  return std::nullopt;
}

// Bytes of the new file's tensor.
struct NewTensor {
  GgmlType type = GgmlType::kF32;
  std::vector<std::int64_t> dims{};  // fastest first
  std::vector<std::byte> bytes{};
};

class PeftConverter {
 public:
  PeftConverter(const PeftConfig& config, const SafetensorsFile& file, const PeftModules& modules)
      : config_(config), file_(file), modules_(modules) {}

  Result<std::vector<std::byte>> Convert() {
    KVCACHE_RETURN_IF_ERROR(FindPairs());
    for (const auto& [module, pair] : pairs_) {
      KVCACHE_RETURN_IF_ERROR(CheckPair(module, pair));
      KVCACHE_RETURN_IF_ERROR(AddPair(module, pair));
    }
    for (const SafeTensor* base : bases_) KVCACHE_RETURN_IF_ERROR(CheckBase(*base));
    KVCACHE_RETURN_IF_ERROR(CheckStacks());
    return Write();
  }

 private:
  std::string Where(const SafeTensor& tensor) const {
    return StrCat(file_.path(), ": tensor ", Quoted(tensor.name));
  }

  Status FindPairs() {
    for (const SafeTensor& tensor : file_.tensors()) {
      std::string_view name = tensor.name;
      if (name.find("lora_magnitude_vector") != name.npos) {
        return Unsupported(Where(tensor) + " belongs to DoRA, which is not supported");
      }
      if (name.starts_with(kWrapper) && name.ends_with(kBaseSuffix)) {
        bases_.push_back(&tensor);
        continue;
      }
      const auto half = std::ranges::find_if(
          kHalves, [&](const HalfName& each) { return name.ends_with(each.suffix); });
      if (!name.starts_with(kWrapper) || half == std::end(kHalves)) {
        return Unsupported(
            StrCat(Where(tensor), " is no ", kWrapper,
                   "….lora_A.weight or lora_B.weight: adapters change matrices only"));
      }
      name.remove_prefix(kWrapper.size());
      name.remove_suffix(half->suffix.size());
      ModulePair& pair = pairs_[std::string(name)];
      pair.is_embedding = half->is_embedding;
      (half->half == Half::kA ? pair.a : pair.b) = &tensor;
    }
    return pairs_.empty() ? Corrupt(file_.path() + ": the adapter has no tensors") : Status::Ok();
  }

  // The base's weights beside a pair say nothing new.
  Status CheckBase(const SafeTensor& base) const {
    std::string_view module = base.name;
    module.remove_prefix(kWrapper.size());
    module.remove_suffix(kBaseSuffix.size());
    const auto found = pairs_.find(std::string(module));
    if (found == pairs_.end()) {
      return Unsupported(StrCat(Where(base), " belongs to no pair: adapters change matrices only"));
    }
    const ModulePair& pair = found->second;
    std::vector<std::int64_t> shape{pair.outputs(), pair.inputs()};
    if (pair.is_embedding) std::swap(shape[0], shape[1]);
    if (std::ranges::equal(base.shape, shape)) return Status::Ok();
    return Corrupt(StrCat(Where(base), " is no matrix of ", shape[0], " rows and ", shape[1],
                          " columns, as its pair is"));
  }

  Status CheckPair(const std::string& module, const ModulePair& pair) const {
    if (pair.a == nullptr || pair.b == nullptr) {
      return Corrupt(StrCat(Where(*(pair.a == nullptr ? pair.b : pair.a)),
                            " has no other half: module ", Quoted(module), " needs lora_",
                            pair.a == nullptr ? "A" : "B"));
    }
    for (const SafeTensor* half : {pair.a, pair.b}) {
      if (!FloatType(half->type)) {
        return Unsupported(StrCat(Where(*half), " is ", half->type, "; must be F32, F16 or BF16"));
      }
      const bool is_matrix = half->shape.size() == 2 && half->elements() > 0;
      if (!is_matrix) return Corrupt(Where(*half) + " is no matrix");
    }
    KVCACHE_RETURN_IF_ERROR(config_.CheckModule(module));
    const std::int64_t rank = config_.RankOf(module);
    if (pair.a->shape[0] == rank && pair.b->shape[1] == rank) return Status::Ok();
    return Corrupt(StrCat(Where(*pair.a), " has ", pair.a->shape[0], " rows, and its lora_B ",
                          pair.b->shape[1], " columns; adapter_config.json says rank ", rank));
  }

  Status AddPair(const std::string& module, const ModulePair& pair) {
    const std::vector<PeftTarget> targets = modules_.TargetsOf(TextModule(module));
    if (targets.empty()) {
      return Unsupported(StrCat(Where(*pair.a), " is for module ", Quoted(module),
                                ", which has no place in architecture ",
                                Quoted(modules_.architecture())));
    }
    const double scale = config_.ScaleOf(module);
    // The file has one alpha: that of the first module. Others' factors are multiplied into their B.
    if (alpha_ == 0.0f) alpha_ = static_cast<float>(scale * static_cast<double>(pair.rank()));
    const double own = static_cast<double>(alpha_) / static_cast<double>(pair.rank());
    const bool is_same = std::abs(scale / own - 1.0) < 1e-6;  // but for the rounding of alpha
    const auto factor = static_cast<float>(is_same ? 1.0 : scale / own);
    for (const PeftTarget& target : targets) {
      KVCACHE_ASSIGN_OR_RETURN(const auto b, BOf(pair, target, factor));
      KVCACHE_RETURN_IF_ERROR(Put(target, ".lora_a", *pair.a, AOf(pair)));
      KVCACHE_RETURN_IF_ERROR(Put(target, ".lora_b", *pair.b, b));
    }
    return Status::Ok();
  }

  // The embedding's A has a row for each token in the file, and a column in PEFT's form.
  static NewTensor AOf(const ModulePair& pair) {
    NewTensor tensor{.type = *FloatType(pair.a->type),
                     .dims = {pair.inputs(), pair.rank()},
                     .bytes = {pair.a->bytes.begin(), pair.a->bytes.end()}};
    if (!pair.is_embedding) return tensor;
    tensor.dims = {pair.rank(), pair.inputs()};
    const std::size_t size = tensor.type == GgmlType::kF32 ? 4 : 2;
    const auto rank = static_cast<std::size_t>(pair.rank());
    const auto rows = static_cast<std::size_t>(pair.inputs());
    for (std::size_t row = 0; row < rows; ++row) {
      for (std::size_t i = 0; i < rank; ++i) {
        std::memcpy(&tensor.bytes[(row * rank + i) * size], &pair.a->bytes[(i * rows + row) * size],
                    size);
      }
    }
    return tensor;
  }

  Result<NewTensor> BOf(const ModulePair& pair, const PeftTarget& target, float factor) const {
    if (target.source_rows > 0 && pair.outputs() != target.source_rows) {
      return Corrupt(StrCat(Where(*pair.b), " has ", pair.outputs(), " rows; the base needs ",
                            target.source_rows));
    }
    NewTensor tensor{.type = *FloatType(pair.b->type),
                     .dims = {pair.rank(), target.rows > 0 ? target.rows : pair.outputs()}};
    const std::size_t row_bytes = pair.b->bytes.size() / static_cast<std::size_t>(pair.outputs());
    for (std::int64_t row = 0; row < tensor.dims[1]; ++row) {
      const std::int64_t from = target.source_row ? target.source_row(row) : row;
      if (from >= pair.outputs()) {
        return Corrupt(StrCat(Where(*pair.b), " has ", pair.outputs(),
                              " rows, which are no whole heads of the base"));
      }
      const auto bytes =
          pair.b->bytes.subspan(static_cast<std::size_t>(from) * row_bytes, row_bytes);
      tensor.bytes.insert(tensor.bytes.end(), bytes.begin(), bytes.end());
    }
    if (factor != 1.0f) KVCACHE_RETURN_IF_ERROR(Multiply(factor, tensor));
    return tensor;
  }

  static Status Multiply(float factor, NewTensor& tensor) {
    std::vector<float> values(static_cast<std::size_t>(tensor.dims[0] * tensor.dims[1]));
    KVCACHE_RETURN_IF_ERROR(Dequantize(*FindGgmlType(tensor.type)->dtype, tensor.bytes, values));
    for (float& value : values) value *= factor;
    const auto bytes = std::as_bytes(std::span(values));
    tensor.type = GgmlType::kF32;
    tensor.bytes.assign(bytes.begin(), bytes.end());
    return Status::Ok();
  }

  // Adds a tensor, or the next matrix of a stack: experts come in the order of their names, so they are placed by number.
  Status Put(const PeftTarget& target, std::string_view suffix, const SafeTensor& source,
             NewTensor tensor) {
    const std::string name = StrCat(target.tensor, suffix);
    if (target.expert < 0) {
      if (tensors_.emplace(name, std::move(tensor)).second) return Status::Ok();
      return Corrupt(StrCat(Where(source), " is a second one for ", Quoted(name)));
    }
    Stack& stack = stacks_[name];
    if (stack.matrices.empty()) {
      stack.matrices.resize(static_cast<std::size_t>(modules_.experts()));
      stack.type = tensor.type;
      stack.dims = tensor.dims;
    }
    if (tensor.type != stack.type || tensor.dims != stack.dims) {
      return Unsupported(
          StrCat(Where(source), " has another type or shape than that of the first expert"));
    }
    auto& matrix = stack.matrices[static_cast<std::size_t>(target.expert)];
    if (!matrix.empty())
      return Corrupt(StrCat(Where(source), " is a second one for ", Quoted(name)));
    matrix = std::move(tensor.bytes);
    return Status::Ok();
  }

  Status CheckStacks() {
    for (auto& [name, stack] : stacks_) {
      NewTensor whole{.type = stack.type, .dims = stack.dims};
      whole.dims.push_back(std::ssize(stack.matrices));
      for (std::size_t i = 0; i < stack.matrices.size(); ++i) {
        const std::vector<std::byte>& matrix = stack.matrices[i];
        if (matrix.empty()) {
          return Unsupported(StrCat(file_.path(), ": expert ", i, " of ", Quoted(name),
                                    " has no tensors; all experts of a layer must have them"));
        }
        whole.bytes.insert(whole.bytes.end(), matrix.begin(), matrix.end());
      }
      tensors_.emplace(name, std::move(whole));
    }
    return Status::Ok();
  }

  Result<std::vector<std::byte>> Write() const {
    GgufHeader header;
    header.SetString("general.type", "adapter");
    header.SetString("general.architecture", modules_.architecture());
    header.SetString("adapter.type", "lora");
    header.SetFloat32("adapter.lora.alpha", alpha_);
    for (const auto& [name, tensor] : tensors_) header.AddTensor(name, tensor.type, tensor.dims);
    KVCACHE_ASSIGN_OR_RETURN(const std::string text, header.Serialize());
    const auto begin = std::as_bytes(std::span(text));
    std::vector<std::byte> image(begin.begin(), begin.end());
    image.resize(text.size() + header.data_bytes());
    std::size_t index = 0;
    for (const auto& [name, tensor] : tensors_) {
      const std::uint64_t offset = text.size() + header.tensors()[index++].offset;
      std::ranges::copy(tensor.bytes, image.begin() + static_cast<std::ptrdiff_t>(offset));
    }
    return image;
  }

  struct Stack {
    GgmlType type = GgmlType::kF32;
    std::vector<std::int64_t> dims;
    std::vector<std::vector<std::byte>> matrices;  // by expert
  };

  const PeftConfig& config_;
  const SafetensorsFile& file_;
  const PeftModules& modules_;
  std::map<std::string, ModulePair> pairs_;  // by module
  std::vector<const SafeTensor*> bases_;     // kBaseSuffix
  std::map<std::string, NewTensor> tensors_;
  std::map<std::string, Stack> stacks_;
  float alpha_ = 0.0f;
};

Result<std::vector<std::byte>> ConvertWith(const HfConfig& settings, const SafetensorsFile& file,
                                           const GgufFile& base) {
  return Guarded("no memory for an adapter", [&]() -> Result<std::vector<std::byte>> {
    KVCACHE_ASSIGN_OR_RETURN(const PeftConfig config, PeftConfig::Read(settings));
    KVCACHE_ASSIGN_OR_RETURN(const PeftModules modules, PeftModules::For(base));
    return PeftConverter(config, file, modules).Convert();
  });
}

}  // namespace

Result<std::vector<std::byte>> ConvertPeftAdapter(std::string_view config,
                                                  std::span<const std::byte> tensors,
                                                  const std::string& place, const GgufFile& base) {
  auto value = ParseBoundedJson(config, kMaxPeftConfigBytes);
  if (!value.ok()) return std::move(value).TakeStatus().WithContext(kPeftConfigName);
  KVCACHE_ASSIGN_OR_RETURN(const HfConfig settings,
                           HfConfig::Make(std::move(value).value(), kPeftConfigName));
  KVCACHE_ASSIGN_OR_RETURN(const auto file, SafetensorsFile::Parse(tensors, place));
  return ConvertWith(settings, *file, base);
}

Result<std::vector<std::byte>> ImportPeftAdapter(const std::string& path, const GgufFile& base) {
  namespace fs = std::filesystem;
  std::error_code error;
  const bool is_folder = fs::is_directory(path, error);
  const fs::path folder = is_folder ? fs::path(path) : fs::path(path).parent_path();
  KVCACHE_ASSIGN_OR_RETURN(const HfDirectory directory,
                           HfDirectory::OpenAdapter(folder.empty() ? "." : folder.string()));
  KVCACHE_ASSIGN_OR_RETURN(const HfConfig settings, HfConfig::Read(directory, kPeftConfigName));
  if (is_folder && !directory.Has(kPeftTensorsName) && directory.Has("adapter_model.bin")) {
    return Unsupported(StrCat(path,
                              ": the weights are pickled (adapter_model.bin); save them as "
                              "safetensors"));
  }
  KVCACHE_ASSIGN_OR_RETURN(
      const std::string tensors,
      directory.File(is_folder ? kPeftTensorsName : fs::path(path).filename().string()));
  KVCACHE_ASSIGN_OR_RETURN(const auto file, SafetensorsFile::Open(tensors));
  return ConvertWith(settings, *file, base);
}

bool IsPeftAdapter(const std::string& path) {
  std::error_code error;
  return path.ends_with(".safetensors") || std::filesystem::is_directory(path, error);
}

}  // namespace kvcache
