#include "gguf/gguf_summary.h"

#include <gtest/gtest.h>

#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "base/sha256.h"
#include "gguf/gguf_writer.h"

namespace kvcache::gguf_summary_test {
namespace {

// Returns the summary of a file in memory with one f16 and one f32 tensor, and these bytes as the first one's.
GgufSummary Summarize(std::optional<std::uint32_t> file_type, std::size_t rows,
                      std::vector<std::byte>* bytes = nullptr, std::size_t change_at = 0) {
  GgufHeader header;
  header.SetString("general.architecture", "llama");
  if (file_type) header.SetUint32("general.file_type", *file_type);
  (void)header.AddTensor("a", GgmlType::kF16, {1024, static_cast<std::int64_t>(rows)});
  (void)header.AddTensor("b", GgmlType::kF32, {32});
  const std::string head = *header.Serialize();
  std::vector<std::byte> file(head.size() + header.data_bytes());
  std::memcpy(file.data(), head.data(), head.size());
  if (change_at > 0) file[change_at] ^= std::byte{1};
  const auto parsed = GgufFile::Parse(file, "test");
  EXPECT_TRUE(parsed.ok()) << parsed.status().message();
  const GgufSummary summary = SummaryOf(**parsed);
  if (bytes != nullptr) *bytes = std::move(file);
  return summary;
}

TEST(GgufSummary, HasWhatListsShow) {
  std::vector<std::byte> bytes;
  const GgufSummary summary = Summarize(15, 2, &bytes);
  EXPECT_EQ(summary.family, "llama");
  EXPECT_EQ(summary.parameters, 2 * 1024 + 32);
  EXPECT_EQ(summary.quantization, "Q4_K_M");
  EXPECT_EQ(summary.digest, HexText(Sha256Of(bytes)));
  EXPECT_EQ(Summarize(7, 2).quantization, "Q8_0");
  EXPECT_EQ(Summarize(std::nullopt, 2).quantization, "F16");
  EXPECT_EQ(Summarize(9999, 2).quantization, "F16");
}

TEST(GgufSummary, LargeFilesHaveStableDigests) {
  constexpr std::size_t kRows = (kMaxHashedBytes >> 11) + 1024;
  std::vector<std::byte> bytes;
  const GgufSummary summary = Summarize(1, kRows, &bytes);
  EXPECT_EQ(summary.digest.size(), 64);
  EXPECT_NE(summary.digest, HexText(Sha256Of(bytes)));
  EXPECT_EQ(summary.digest, Summarize(1, kRows).digest);
  EXPECT_NE(summary.digest, Summarize(1, kRows + 1).digest) << "another size";
  EXPECT_NE(summary.digest, Summarize(2, kRows).digest) << "another header";
  EXPECT_NE(summary.digest, Summarize(1, kRows, nullptr, bytes.size() - 1).digest) << "the end";
}

}  // namespace
}  // namespace kvcache::gguf_summary_test
