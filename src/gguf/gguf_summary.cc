#include "gguf/gguf_summary.h"

#include <array>
#include <cstddef>
#include <map>
#include <span>
#include <string_view>
#include <utility>

#include "base/sha256.h"

namespace kvcache {
namespace {

// llama.cpp's numbers of general.file_type (llama_ftype).
constexpr std::pair<std::uint64_t, std::string_view> kFileTypes[] = {
    {0, "F32"},      {1, "F16"},      {2, "Q4_0"},    {3, "Q4_1"},    {7, "Q8_0"},
    {8, "Q5_0"},     {9, "Q5_1"},     {10, "Q2_K"},   {11, "Q3_K_S"}, {12, "Q3_K_M"},
    {13, "Q3_K_L"},  {14, "Q4_K_S"},  {15, "Q4_K_M"}, {16, "Q5_K_S"}, {17, "Q5_K_M"},
    {18, "Q6_K"},    {19, "IQ2_XXS"}, {20, "IQ2_XS"}, {21, "Q2_K_S"}, {22, "IQ3_XS"},
    {23, "IQ3_XXS"}, {24, "IQ1_S"},   {25, "IQ4_NL"}, {26, "IQ3_S"},  {27, "IQ3_M"},
    {28, "IQ2_S"},   {29, "IQ2_M"},   {30, "IQ4_XS"}, {31, "IQ1_M"},  {32, "BF16"},
    {36, "TQ1_0"},   {37, "TQ2_0"},   {38, "MXFP4"}};

// Returns the name of the type that most values have.
std::string MostFrequentType(const GgufFile& file) {
  std::map<std::string_view, std::int64_t> values;
  for (const GgufTensor& tensor : file.tensors()) values[tensor.type->name] += tensor.elements();
  std::string_view max;
  for (const auto& [name, count] : values) {
    if (max.empty() || count > values[max]) max = name;
  }
  std::string text(max);
  for (char& c : text) c = c >= 'a' && c <= 'z' ? static_cast<char>(c - 32) : c;
  return text;
}

std::string QuantizationOf(const GgufFile& file) {
  const auto type = file.GetUint("general.file_type");
  for (const auto& [number, name] : kFileTypes) {
    if (type.ok() && *type == number) return std::string(name);
  }
  return MostFrequentType(file);
}

Sha256Hash DigestOf(const GgufPart& part) {
  constexpr std::uint64_t kBlocks = 64;
  constexpr std::uint64_t kBlockBytes = 4096;
  const std::uint64_t size = part.bytes.size();
  if (size <= kMaxHashedBytes) return Sha256Of(part.bytes);
  Sha256 hash;
  std::array<std::byte, 8> length{};
  for (std::size_t i = 0; i < length.size(); ++i) length[i] = static_cast<std::byte>(size >> 8 * i);
  hash.Add(length);
  hash.Add(part.header());
  const std::span<const std::byte> data = part.bytes.subspan(part.data_offset);
  for (std::uint64_t i = 0; i < kBlocks && data.size() >= kBlockBytes; ++i) {
    hash.Add(data.subspan((data.size() - kBlockBytes) * i / (kBlocks - 1), kBlockBytes));
  }
  return hash.Finish();
}

std::string DigestOf(const GgufFile& file) {
  if (file.parts().size() == 1) return HexText(DigestOf(file.parts().front()));
  Sha256 hash;
  for (const GgufPart& part : file.parts()) hash.Add(DigestOf(part));
  return HexText(hash.Finish());
}

}  // namespace

GgufSummary SummaryOf(const GgufFile& file) {
  GgufSummary summary;
  const auto family = file.GetStringOr("general.architecture", "");
  if (family.ok()) summary.family = std::string(*family);
  const auto context = file.GetInt(summary.family + ".context_length");
  if (context.ok()) summary.context_length = *context;
  const auto width = file.GetInt(summary.family + ".embedding_length");
  if (width.ok()) summary.embedding_length = *width;
  for (const GgufTensor& tensor : file.tensors()) summary.parameters += tensor.elements();
  summary.quantization = QuantizationOf(file);
  summary.digest = DigestOf(file);
  return summary;
}

}  // namespace kvcache
