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
  for (const std::string_view prefix : {"model.language_model.", "language_model.model.",
                                        "language_model.", "model.", "bert.", "roberta."}) {
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

std::size_t BytesOf(GgmlType type) {
  return type == GgmlType::kF32 ? 4 : 2;
}

// A matrix of the new file, and what it is made from.
struct NewMatrix {
  const SafeTensor* source = nullptr;  // null: none yet
  const ModulePair* pair = nullptr;
  PeftTarget target{};
  float factor = 1.0f;  // on the values
};

// A tensor of the new file: a matrix, or one for each expert.
struct NewTensor {
  GgmlType type = GgmlType::kF32;
  std::vector<std::int64_t> dims{};  // of each matrix, fastest first
  std::vector<NewMatrix> matrices{};
  bool is_stack = false;
};

// Shapes are checked before values are read, so that the new file is all that an import holds.
class PeftConverter {
 public:
  PeftConverter(const PeftConfig& config, const SafetensorsFile& file, const PeftModules& modules,
                const GgufFile& base)
      : config_(config), file_(file), modules_(modules), base_(base) {}

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
      KVCACHE_RETURN_IF_ERROR(CheckTarget(pair, target));
      std::vector<std::int64_t> a{pair.inputs(), pair.rank()};
      if (pair.is_embedding) std::swap(a[0], a[1]);
      const std::int64_t rows = target.rows > 0 ? target.rows : pair.outputs();
      const GgmlType of_b = factor == 1.0f ? *FloatType(pair.b->type) : GgmlType::kF32;
      KVCACHE_RETURN_IF_ERROR(
          Put(".lora_a", {*FloatType(pair.a->type), std::move(a)}, {pair.a, &pair, target, 1.0f}));
      KVCACHE_RETURN_IF_ERROR(
          Put(".lora_b", {of_b, {pair.rank(), rows}}, {pair.b, &pair, target, factor}));
    }
    return Status::Ok();
  }

  // The base has the target, with the pair's inputs and outputs.
  Status CheckTarget(const ModulePair& pair, const PeftTarget& target) const {
    const GgufTensor* const base = base_.FindTensor(target.tensor);
    if (base == nullptr) {
      return NotFound(StrCat(Where(*pair.a), " is for ", Quoted(target.tensor),
                             ", which the base does not have"));
    }
    if (target.source_rows > 0 && pair.outputs() != target.source_rows) {
      return Corrupt(StrCat(Where(*pair.b), " has ", pair.outputs(), " rows; the base needs ",
                            target.source_rows));
    }
    std::int64_t inputs = base->dims[0], outputs = base->dims[1];
    if (pair.is_embedding) std::swap(inputs, outputs);
    if (pair.inputs() != inputs) {
      return Corrupt(StrCat(Where(*pair.a), " has ", pair.inputs(), " columns; the base's ",
                            Quoted(target.tensor), " needs ", inputs));
    }
    const std::int64_t rows = target.rows > 0 ? target.rows : pair.outputs();
    if (rows != outputs) {
      return Corrupt(StrCat(Where(*pair.b), " gives ", rows, " rows; the base's ",
                            Quoted(target.tensor), " needs ", outputs));
    }
    for (std::int64_t row = 0; target.source_row && row < rows; ++row) {
      if (target.source_row(row) < pair.outputs()) continue;
      return Corrupt(StrCat(Where(*pair.b), " has ", pair.outputs(),
                            " rows, which are no whole heads of the base"));
    }
    return Status::Ok();
  }

  // Adds a tensor, or the next matrix of a stack: experts come in the order of their names, so they are placed by number.
  struct Form {
    GgmlType type;
    std::vector<std::int64_t> dims;
  };
  Status Put(std::string_view suffix, Form form, NewMatrix matrix) {
    const std::string name = StrCat(matrix.target.tensor, suffix);
    const bool is_stack = matrix.target.expert >= 0;
    const auto [at, is_new] = tensors_.try_emplace(name);
    NewTensor& tensor = at->second;
    if (is_new) {
      tensor = {.type = form.type, .dims = std::move(form.dims), .is_stack = is_stack};
      tensor.matrices.resize(is_stack ? static_cast<std::size_t>(modules_.experts()) : 1);
    } else if (form.type != tensor.type || form.dims != tensor.dims) {
      return Unsupported(StrCat(Where(*matrix.source),
                                " has another type or shape than that of the first expert"));
    }
    const std::int64_t index = std::max<std::int64_t>(matrix.target.expert, 0);
    NewMatrix& place = tensor.matrices[static_cast<std::size_t>(index)];
    if (place.source != nullptr) {
      return Corrupt(StrCat(Where(*matrix.source), " is a second one for ", Quoted(name)));
    }
    place = std::move(matrix);
    return Status::Ok();
  }

  Status CheckStacks() const {
    for (const auto& [name, tensor] : tensors_) {
      for (std::size_t i = 0; i < tensor.matrices.size(); ++i) {
        if (tensor.matrices[i].source != nullptr) continue;
        return Unsupported(StrCat(file_.path(), ": expert ", i, " of ", Quoted(name),
                                  " has no tensors; all experts of a layer must have them"));
      }
    }
    return Status::Ok();
  }

  Result<std::vector<std::byte>> Write() const {
    GgufHeader header;
    header.SetString("general.type", "adapter");
    header.SetString("general.architecture", modules_.architecture());
    header.SetString("adapter.type", "lora");
    header.SetFloat32("adapter.lora.alpha", alpha_);
    for (const auto& [name, tensor] : tensors_) {
      std::vector<std::int64_t> dims = tensor.dims;
      if (tensor.is_stack) dims.push_back(std::ssize(tensor.matrices));
      header.AddTensor(name, tensor.type, dims);
    }
    KVCACHE_ASSIGN_OR_RETURN(const std::string text, header.Serialize());
    std::vector<std::byte> image(text.size() + header.data_bytes());
    std::memcpy(image.data(), text.data(), text.size());
    std::size_t index = 0;
    for (const auto& [name, tensor] : tensors_) {
      std::size_t at = text.size() + header.tensors()[index++].offset;
      const std::size_t bytes =
          static_cast<std::size_t>(tensor.dims[0] * tensor.dims[1]) * BytesOf(tensor.type);
      for (const NewMatrix& matrix : tensor.matrices) {
        KVCACHE_RETURN_IF_ERROR(Fill(matrix, std::span(image).subspan(at, bytes)));
        at += bytes;
      }
    }
    return image;
  }

  static Status Fill(const NewMatrix& matrix, std::span<std::byte> out) {
    const ModulePair& pair = *matrix.pair;
    if (matrix.source == pair.b) return FillRows(matrix, out);
    if (pair.is_embedding) {
      Transpose(pair, out);
    } else {
      std::ranges::copy(pair.a->bytes, out.begin());
    }
    return Status::Ok();
  }

  // The embedding's A has a row for each token in the new file, and a column in PEFT's form.
  static void Transpose(const ModulePair& pair, std::span<std::byte> out) {
    const std::size_t size = BytesOf(*FloatType(pair.a->type));
    const auto rank = static_cast<std::size_t>(pair.rank());
    const auto rows = static_cast<std::size_t>(pair.inputs());
    for (std::size_t row = 0; row < rows; ++row) {
      for (std::size_t i = 0; i < rank; ++i) {
        std::memcpy(&out[(row * rank + i) * size], &pair.a->bytes[(i * rows + row) * size], size);
      }
    }
  }

  static Status FillRows(const NewMatrix& matrix, std::span<std::byte> out) {
    const SafeTensor& source = *matrix.source;
    const auto outputs = static_cast<std::size_t>(matrix.pair->outputs());
    const std::size_t row_bytes = source.bytes.size() / outputs;
    const auto rank = static_cast<std::size_t>(matrix.pair->rank());
    std::vector<float> values(rank);
    for (std::int64_t row = 0; !out.empty(); ++row) {
      const std::int64_t from = matrix.target.source_row ? matrix.target.source_row(row) : row;
      const auto bytes =
          source.bytes.subspan(static_cast<std::size_t>(from) * row_bytes, row_bytes);
      if (matrix.factor == 1.0f) {
        std::ranges::copy(bytes, out.begin());
        out = out.subspan(row_bytes);
        continue;
      }
      const GgmlType type = *FloatType(source.type);
      KVCACHE_RETURN_IF_ERROR(Dequantize(*FindGgmlType(type)->dtype, bytes, values));
      for (float& value : values) value *= matrix.factor;
      std::ranges::copy(std::as_bytes(std::span(values)), out.begin());
      out = out.subspan(rank * sizeof(float));
    }
    return Status::Ok();
  }

  const PeftConfig& config_;
  const SafetensorsFile& file_;
  const PeftModules& modules_;
  const GgufFile& base_;
  std::map<std::string, ModulePair> pairs_;  // by module
  std::vector<const SafeTensor*> bases_;     // kBaseSuffix
  std::map<std::string, NewTensor> tensors_;
  float alpha_ = 0.0f;
};

Result<std::vector<std::byte>> ConvertWith(const HfConfig& settings, const SafetensorsFile& file,
                                           const GgufFile& base) {
  return Guarded("no memory for an adapter", [&]() -> Result<std::vector<std::byte>> {
    KVCACHE_ASSIGN_OR_RETURN(const PeftConfig config, PeftConfig::Read(settings));
    KVCACHE_ASSIGN_OR_RETURN(const PeftModules modules, PeftModules::For(base));
    return PeftConverter(config, file, modules, base).Convert();
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
