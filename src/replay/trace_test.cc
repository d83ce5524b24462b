// Traces: what is read, and which lines are refused.
#include "replay/trace.h"
#include "base/strings.h"

#include <gtest/gtest.h>
#include <lzma.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "base/strings.h"
#include "replay/line_reader.h"
#include "replay/trace_tokens.h"

namespace kvcache::trace_test {
namespace {

class TraceTest : public ::testing::Test {
 protected:
  std::string Write(const std::string& bytes) {
    // Tests run at the same time, each in a process of its own.
    std::string path = StrCat(::testing::TempDir(), "kvcache_trace.", getpid(), ".jsonl");
    std::ofstream(path, std::ios::binary) << bytes;
    return path;
  }
  std::string ErrorOf(const std::string& bytes, int block_size = 4) {
    const std::string path = Write(bytes);
    const auto trace = ReadTrace(path, block_size);
    if (trace.ok()) return "no error";
    EXPECT_TRUE(trace.status().message().starts_with(path)) << trace.status().message();
    return trace.status().message().substr(path.size());
  }
};

constexpr const char* kGood =
    R"({"timestamp": 0, "input_length": 6, "output_length": 2, "hash_ids": [7, 9]}
{"timestamp": 1500.5, "input_length": 9, "output_length": 0, "hash_ids": [7, 12, 13], "x": {}}
)";

std::string Xz(const std::string& text) {
  std::string out(text.size() + 1024, '\0');
  std::size_t size = 0;
  EXPECT_EQ(lzma_easy_buffer_encode(6, LZMA_CHECK_CRC64, nullptr,
                                    reinterpret_cast<const std::uint8_t*>(text.data()), text.size(),
                                    reinterpret_cast<std::uint8_t*>(out.data()), &size, out.size()),
            LZMA_OK);
  out.resize(size);
  return out;
}

void ExpectGood(const Trace& trace) {
  ASSERT_EQ(trace.requests.size(), 2U);
  EXPECT_EQ(trace.distinct, 4U);
  EXPECT_EQ(trace.PromptTokens(), 15);
  EXPECT_EQ(trace.requests[0].output + trace.requests[1].output, 2);
  EXPECT_EQ(trace.requests[0].blocks, (std::vector<std::uint32_t>{0, 1}));
  EXPECT_EQ(trace.requests[1].blocks, (std::vector<std::uint32_t>{0, 2, 3}));
  EXPECT_EQ(trace.BlockTokens(trace.requests[0], 0), 4);
  EXPECT_EQ(trace.BlockTokens(trace.requests[0], 1), 2);
  EXPECT_EQ(trace.requests[1].seconds, 1.5005);
}

TEST_F(TraceTest, ReadsPlainAndCompressedLines) {
  const std::string crlf = std::string("\n") + kGood;
  const std::string no_newline(kGood, std::string(kGood).size() - 1);
  for (const std::string& bytes : {std::string(kGood), crlf, no_newline, Xz(kGood)}) {
    const auto trace = ReadTrace(Write(bytes), 4);
    ASSERT_TRUE(trace.ok()) << trace.status().message();
    ExpectGood(*trace);
  }
  // Several compressed streams are one file.
  const std::string text = kGood;
  const std::size_t cut = text.find('\n') + 9;
  const auto trace = ReadTrace(Write(Xz(text.substr(0, cut)) + Xz(text.substr(cut))), 4);
  ASSERT_TRUE(trace.ok()) << trace.status().message();
  ExpectGood(*trace);
}

TEST_F(TraceTest, RefusesBadLines) {
  const auto line = [](const std::string& time, const std::string& input, const std::string& output,
                       const std::string& ids) {
    return R"({"timestamp": )" + time + R"(, "input_length": )" + input + R"(, "output_length": )" +
           output + R"(, "hash_ids": )" + ids + "}\n";
  };
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", ": the trace has no requests"},
      {"\n \n", ": the trace has no requests"},
      {std::string(kGood) + "[1]\n", ":3: '[1]' is not a JSON object"},
      {"{}", ":1: the field timestamp is missing"},
      {R"({"timestamp": 1, "input_length": 4})", ":1: the field output_length is missing"},
      {line("\"1\"", "4", "1", "[1]"), ":1: timestamp is '\"1\"'; must be a number of at least 0"},
      {line("-1", "4", "1", "[1]"), ":1: timestamp is '-1'; must be a number of at least 0"},
      {line("1", "0", "1", "[]"),
       ":1: input_length is '0'; must be a whole number from 1 to 268435456"},
      {line("1", "4.5", "1", "[1]"),
       ":1: input_length is '4.5'; must be a whole number from 1 to 268435456"},
      {line("1", "4", "-1", "[1]"),
       ":1: output_length is '-1'; must be a whole number from 0 to 268435456"},
      {line("1", "4", "18446744073709551615", "[1]"),
       ":1: output_length is '18446744073709551615'; must be a whole number from 0 to 268435456"},
      {line("1", "4", "1", "1"), ":1: hash_ids is '1'; must be an array"},
      {line("1", "5", "1", "[1]"),
       ":1: hash_ids has 1 ids; an input_length of 5 in blocks of 4 needs 2"},
      {line("1", "4", "1", "[1, 2]"),
       ":1: hash_ids has 2 ids; an input_length of 4 in blocks of 4 needs 1"},
      {line("1", "4", "1", "[-1]"),
       ":1: an id of hash_ids is '-1'; must be a whole number from 0 to 9223372036854775807"},
      {line("1", "4", "1", "[null]"),
       ":1: an id of hash_ids is 'null'; must be a whole number from 0 to 9223372036854775807"},
      {line("1", "8", "1", "[1, 2]") + line("1", "8", "1", "[3, 2]"),
       ":2: id 2 of hash_ids follows 3 here and follows 1 in line 1; ids are chained, so an id "
       "always has the same place"},
      {line("1", "8", "1", "[1, 1]"),
       ":1: id 1 of hash_ids follows 1 here and is the first of its prompt in line 1; ids are "
       "chained, so an id always has the same place"},
  };
  for (const auto& [bytes, error] : cases) EXPECT_EQ(ErrorOf(bytes), error) << bytes;
  EXPECT_TRUE(ErrorOf("{\"timestamp\": 1,").starts_with(":1: ")) << "not JSON";
  EXPECT_TRUE(ErrorOf(std::string(200, '[')).starts_with(":1: ")) << "too deep";
}

TEST_F(TraceTest, RefusesDamagedFiles) {
  const std::string whole = Xz(kGood);
  EXPECT_EQ(ErrorOf(whole.substr(0, whole.size() - 20)),
            ": the compressed bytes are damaged or incomplete after line 2");
  std::string changed = whole;
  changed[whole.size() / 2] ^= 1;
  EXPECT_NE(ErrorOf(changed), "no error");
  EXPECT_EQ(ErrorOf(std::string(LineReader::kMaxLineBytes + (1 << 17), ' ')),
            ":1: the line has more than 16777216 bytes, which is the most");
  const auto missing = ReadTrace(::testing::TempDir() + "kvcache_no_such_trace", 4);
  EXPECT_EQ(missing.status().code(), StatusCode::kNotFound);
  EXPECT_EQ(ReadTrace(::testing::TempDir(), 4).status().code(), StatusCode::kIo);
}

// Whatever a byte becomes, reading ends with a trace or with one line that names the file.
TEST_F(TraceTest, SurvivesChangedBytes) {
  std::mt19937 random(3);
  for (const std::string& good : {std::string(kGood), Xz(kGood)}) {
    for (int i = 0; i < 400; ++i) {
      std::string bytes = good;
      for (int k = 0; k < 3; ++k) bytes[random() % bytes.size()] = static_cast<char>(random());
      const std::string path = Write(bytes);
      const auto trace = ReadTrace(path, 4);
      if (trace.ok()) continue;
      EXPECT_TRUE(trace.status().message().starts_with(path));
    }
  }
}

TEST_F(TraceTest, TokensTellBlocksApart) {
  const auto trace = ReadTrace(Write(kGood), 4);
  ASSERT_TRUE(trace.ok());
  for (const std::int32_t vocabulary : {4, 5, 32000, TraceTokens::kLargestVocabulary}) {
    const TraceTokens make(*trace, vocabulary);
    std::vector<std::int32_t> first;
    std::vector<std::int32_t> second;
    make.AppendPrompt(0, first);
    make.AppendPrompt(1, second);
    ASSERT_EQ(first.size(), 6U);
    ASSERT_EQ(second.size(), 9U);
    for (const std::int32_t token : second) {
      EXPECT_GE(token, 0);
      EXPECT_LT(token, vocabulary);
    }
    EXPECT_TRUE(std::equal(first.begin(), first.begin() + 4, second.begin()));
    const auto digits = std::min<std::ptrdiff_t>(make.digits(), 2);
    EXPECT_FALSE(std::equal(first.begin() + 4, first.begin() + 4 + digits, second.begin() + 4));
    std::vector<std::int32_t> answer;
    make.AppendAnswer(0, answer);
    ASSERT_EQ(answer.size(), 2U);
    EXPECT_EQ(answer[0] % 2, 1) << "prompts have even digits at the beginning of a block";
    EXPECT_EQ(first[0] % 2, 0);
  }
}

}  // namespace
}  // namespace kvcache::trace_test
