#include "convert/quantize_model.h"

#include <utility>
#include <vector>

#include "base/errors.h"
#include "base/strings.h"
#include "convert/tensor_writer.h"
#include "gguf/split_file.h"

namespace kvcache {
namespace {

constexpr std::string_view kFileType = "general.file_type";
constexpr std::string_view kAlignment = "general.alignment";

bool IsFloat(GgmlType type) {
  return type == GgmlType::kF32 || type == GgmlType::kF16 || type == GgmlType::kBF16;
}

Status CheckTypes(const GgufFile& file) {
  for (const GgufTensor& tensor : file.tensors()) {
    if (!IsQuantizable(tensor.name, static_cast<std::size_t>(tensor.rank))) continue;
    if (IsFloat(tensor.type->type)) continue;
    return Unsupported(StrCat(file.path(), ": ", tensor.name, " is ", tensor.type->name,
                              " already; quantize a model of f32, f16 or bf16"));
  }
  return Status::Ok();
}

}  // namespace

Status QuantizeModel(const GgufFile& file, const WeightScheme& scheme, const std::string& path,
                     int threads) {
  KVCACHE_RETURN_IF_ERROR(CheckTypes(file));
  GgufHeader header;
  for (const GgufEntry& entry : file.entries()) {
    if (entry.key == kFileType || entry.key == kAlignment) continue;
    if (!IsSplitKey(entry.key)) header.SetEntry(entry);  // the result is one file
  }
  header.SetUint32(kFileType, scheme.file_type);
  std::vector<TensorPlan> plans;
  for (const GgufTensor& tensor : file.tensors()) {
    TensorPlan plan{.name = std::string(tensor.name),
                    .dims = {tensor.dims.begin(), tensor.dims.begin() + tensor.rank},
                    .type = tensor.type->type,
                    .source_type = tensor.type->type,
                    .parts = {tensor.bytes},
                    .release = [&file, part = tensor.part](std::span<const std::byte> range) {
                      file.parts()[part].mapping.Drop(range);
                    }};
    if (plan.dims.empty()) plan.dims = {1};
    plans.push_back(std::move(plan));
  }
  ApplyScheme(scheme, &plans);
  return WriteTensors(std::move(header), plans, path, threads);
}

}  // namespace kvcache
