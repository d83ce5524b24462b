#include "convert/quantize_model.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "base/strings.h"
#include "gguf/gguf_writer.h"
#include "tensor/quantize.h"

namespace kvcache {
namespace {

constexpr std::string_view kFileType = "general.file_type";
constexpr std::string_view kAlignment = "general.alignment";
constexpr std::int64_t kMaxValues = std::int64_t{1} << 20;  // converted at once

// A type, and its number in general.file_type (llama.cpp's llama_ftype).
struct WeightType {
  std::string_view name;
  DType type;
  std::uint32_t file_type;
};

constexpr std::array kTypes = {
    WeightType{"f32", DType::kF32, 0},    WeightType{"f16", DType::kF16, 1},
    WeightType{"bf16", DType::kBF16, 32}, WeightType{"q4_0", DType::kQ4_0, 2},
    WeightType{"q4_1", DType::kQ4_1, 3},  WeightType{"q5_0", DType::kQ5_0, 8},
    WeightType{"q5_1", DType::kQ5_1, 9},  WeightType{"q8_0", DType::kQ8_0, 7},
    WeightType{"q4_k", DType::kQ4_K, 14}, WeightType{"q5_k", DType::kQ5_K, 16},
    WeightType{"q6_k", DType::kQ6_K, 18},
};

bool IsPlain(GgmlType type) {
  return type == GgmlType::kF32 || type == GgmlType::kF16 || type == GgmlType::kBF16;
}

bool IsMatrix(const GgufTensor& tensor) {
  if (tensor.rank < 2 || !tensor.name.ends_with(".weight")) return false;
  static constexpr std::array kKept = {"norm", "ffn_gate_inp", "conv", "ssm_", "rel_b", "rope"};
  return std::none_of(kKept.begin(), kKept.end(), [&](std::string_view part) {
    return tensor.name.find(part) != std::string_view::npos;
  });
}

// Returns the type that the tensor gets.
GgmlType TypeFor(const GgufTensor& tensor, const GgmlTypeInfo& wanted) {
  const bool converts =
      IsMatrix(tensor) && IsPlain(tensor.type->type) && tensor.dims[0] % wanted.block_size == 0;
  return converts ? wanted.type : tensor.type->type;
}

Status CheckTypes(const GgufFile& file) {
  for (const GgufTensor& tensor : file.tensors()) {
    if (!IsMatrix(tensor) || IsPlain(tensor.type->type)) continue;
    return Unsupported(StrCat(file.path(), ": ", tensor.name, " is ", tensor.type->name,
                              " already; quantize a model of f32, f16 or bf16"));
  }
  return Status::Ok();
}

GgufHeader HeaderOf(const GgufFile& file, DType type) {
  GgufHeader header;
  for (const GgufEntry& entry : file.entries()) {
    if (entry.key != kFileType && entry.key != kAlignment) header.SetEntry(entry);
  }
  const auto* row = std::find_if(kTypes.begin(), kTypes.end(),
                                 [&](const WeightType& each) { return each.type == type; });
  header.SetUint32(kFileType, row->file_type);
  const GgmlTypeInfo& wanted = *FindGgmlType(GgmlTypeOf(type));
  for (const GgufTensor& tensor : file.tensors()) {
    header.AddTensor(tensor.name, TypeFor(tensor, wanted),
                     std::span(tensor.dims).first(static_cast<std::size_t>(tensor.rank)));
  }
  return header;
}

Status WriteConverted(const GgufTensor& tensor, std::size_t index, DType to, GgufWriter& writer) {
  const DType from = *tensor.type->dtype;
  const std::int64_t row = tensor.dims[0];
  const std::int64_t step = row * std::max<std::int64_t>(1, kMaxValues / row);
  std::vector<float> values;
  std::vector<std::byte> bytes;
  std::uint64_t written = 0;
  for (std::int64_t at = 0; at < tensor.elements(); at += step) {
    const std::int64_t count = std::min(step, tensor.elements() - at);
    values.resize(static_cast<std::size_t>(count));
    bytes.resize(static_cast<std::size_t>(BytesOf(to, count)));
    const auto part = tensor.bytes.subspan(static_cast<std::size_t>(BytesOf(from, at)),
                                           static_cast<std::size_t>(BytesOf(from, count)));
    KVCACHE_RETURN_IF_ERROR(Dequantize(from, part, values));
    KVCACHE_RETURN_IF_ERROR(Quantize(to, values, bytes));
    KVCACHE_RETURN_IF_ERROR(writer.Write(index, written, bytes));
    written += bytes.size();
  }
  return Status::Ok();
}

}  // namespace

Result<DType> ParseWeightType(std::string_view name) {
  std::string lower(name);
  for (char& c : lower) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  std::string known;
  for (const WeightType& each : kTypes) {
    if (each.name == lower) return each.type;
    known += StrCat(known.empty() ? "" : ", ", each.name);
  }
  return InvalidArgument(StrCat(Quoted(name), " is no type of weights; there are ", known));
}

Status QuantizeModel(const GgufFile& file, DType type, const std::string& path) {
  KVCACHE_RETURN_IF_ERROR(CheckTypes(file));
  const GgmlTypeInfo& wanted = *FindGgmlType(GgmlTypeOf(type));
  KVCACHE_ASSIGN_OR_RETURN(const auto writer, GgufWriter::Create(path, HeaderOf(file, type)));
  for (std::size_t i = 0; i < file.tensors().size(); ++i) {
    const GgufTensor& tensor = file.tensors()[i];
    const bool kept = TypeFor(tensor, wanted) == tensor.type->type;
    Status status =
        kept ? writer->Write(i, 0, tensor.bytes) : WriteConverted(tensor, i, type, *writer);
    if (!status.ok()) return std::move(status).WithContext(tensor.name);
    file.Drop(tensor);
  }
  return writer->Finish();
}

}  // namespace kvcache
