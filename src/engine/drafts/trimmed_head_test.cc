// Draft heads with an output matrix of their own, over a part of the tokens: they draft those tokens alone, as
// likely as the whole head finds them, and the answers stay those without drafts.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "base/strings.h"
#include "engine/engine_impl.h"
#include "engine/prefixes/hidden_states.h"
#include "gguf/gguf_writer.h"
#include "kvcache/transaction.h"
#include "kvcache/wrapper_cache.h"
#include "kvcache_engine/generate.h"
#include "kvcache_engine/head_drafter.h"
#include "kvcache_engine/session.h"
#include "make_model/make_model.h"

namespace kvcache::trimmed_head_test {
namespace {

using Tokens = std::vector<std::int32_t>;
using Ids = std::vector<std::int64_t>;

constexpr std::int64_t kVocabulary = 512;
constexpr char kMatrix[] = "blk.2.nextn.shared_head_head.weight";

Ids AllTokens() {
  Ids ids(kVocabulary);
  std::iota(ids.begin(), ids.end(), 0);
  return ids;
}

Ids SomeOf(const Ids& ids, std::size_t count) {
  Ids some = ids;
  std::shuffle(some.begin(), some.end(), std::mt19937(5));
  some.resize(count);
  return some;
}

// What a file says of its head's tokens.
struct OwnOutput {
  Ids tokens = {};                        // `d2t`
  std::optional<std::int64_t> rows = {};  // of the matrix, if it has others; 0: there is no matrix
  GgmlType type = GgmlType::kI64;         // of `d2t`
  std::vector<std::int64_t> table_dims = {};  // empty: those of `tokens`
  bool has_table = true;
};

enum class Parts : std::uint8_t { kHeadOnly, kWholeModel };

// Writes the head of `model`, or all of it, with an output matrix of its own: rows of the model's.
void WriteHead(const GgufFile& model, const OwnOutput& own, Parts parts, const std::string& path) {
  const GgufTensor& output = *model.FindTensor("output.weight");
  const auto row_bytes = output.bytes.size() / static_cast<std::size_t>(output.dims[1]);
  const std::int64_t rows = own.rows.value_or(std::ssize(own.tokens));
  GgufHeader header;
  for (const GgufEntry& entry : model.entries()) header.SetEntry(entry);
  std::vector<const GgufTensor*> copied;
  for (const GgufTensor& tensor : model.tensors()) {
    if (parts == Parts::kHeadOnly && !tensor.name.starts_with("blk.2.")) continue;
    copied.push_back(&tensor);
    header.AddTensor(tensor.name, tensor.type->type,
                     std::span(tensor.dims).first(static_cast<std::size_t>(tensor.rank)));
  }
  std::vector<std::vector<std::byte>> added;
  if (rows > 0) {
    header.AddTensor(kMatrix, output.type->type, {output.dims[0], rows});
    auto& bytes = added.emplace_back();
    for (std::int64_t i = 0; i < rows; ++i) {
      const std::int64_t id =
          i < std::ssize(own.tokens) ? own.tokens[static_cast<std::size_t>(i)] : 0;
      const auto token = static_cast<std::size_t>(std::clamp<std::int64_t>(id, 0, kVocabulary - 1));
      const auto row = output.bytes.subspan(token * row_bytes, row_bytes);
      bytes.insert(bytes.end(), row.begin(), row.end());
    }
  }
  if (own.has_table) {
    Ids dims = own.table_dims;
    if (dims.empty()) dims.push_back(std::ssize(own.tokens));
    header.AddTensor("d2t", own.type, dims);
    const auto ids = std::as_bytes(std::span(own.tokens));
    auto& bytes = added.emplace_back(ids.begin(), ids.end());
    if (own.type == GgmlType::kI32) bytes.resize(bytes.size() / 2);
  }
  const auto writer = GgufWriter::Create(path, std::move(header)).value();
  std::size_t index = 0;
  for (const GgufTensor* const tensor : copied) {
    ASSERT_TRUE(writer->Write(index++, 0, tensor->bytes).ok());
  }
  for (const auto& bytes : added) ASSERT_TRUE(writer->Write(index++, 0, bytes).ok());
  ASSERT_TRUE(writer->Finish().ok());
}

class TrimmedHead : public ::testing::TestWithParam<DType> {
 protected:
  void SetUp() override {
    folder_ = ::testing::TempDir() + "trimmed." + std::to_string(getpid());
    std::filesystem::create_directories(folder_);
    make_model::Request request{.architecture = "llama", .type = GetParam()};
    request.shape.family.nextn_layers = 1;
    request.shape.vocab = kVocabulary;
    request.shape.output = make_model::Output::kUntied;
    ASSERT_TRUE(make_model::MakeModel(request, model()).ok());
    file_ = GgufFile::Open(model()).value();
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string model() const { return folder_ + "/model.gguf"; }
  std::string head() const { return folder_ + "/head.gguf"; }

  Result<std::unique_ptr<Engine>> Open(const std::string& model, const std::string& head) {
    return Engine::Open(model, {.threads = 2, .context = 160, .draft_head = head});
  }
  // Opens the model with a head that has just these tokens.
  std::unique_ptr<Engine> OpenWith(const Ids& tokens) {
    WriteHead(*file_, {.tokens = tokens}, Parts::kHeadOnly, head());
    auto engine = Open(model(), head());
    EXPECT_TRUE(engine.ok()) << engine.status().message();
    return std::move(engine).value();
  }

  static Tokens Text(int seed) {
    Tokens tokens;
    for (int i = 0; i < 24; ++i) tokens.push_back(3 + (seed * 101 + i * 37) % 500);
    return tokens;
  }

  // Returns the drafts behind a few texts.
  static std::vector<Tokens> Drafts(Engine& engine) {
    std::vector<Tokens> all;
    const auto drafter = *MakeHeadDrafter(engine);
    drafter->SetSequence(SequenceId{0});
    for (int seed = 0; seed < 12; ++seed) {
      const Tokens text = Text(seed);
      Session session(engine, SequenceId{0});
      EXPECT_TRUE(session.Append(std::span(text).first(text.size() - 1)).ok());
      EXPECT_TRUE(drafter->Begin(text).ok());
      EXPECT_TRUE(drafter->Propose(6, all.emplace_back()).ok());
      EXPECT_FALSE(all.back().empty());
      EXPECT_TRUE(session.Truncate(0).ok());
    }
    return all;
  }

  // Returns the head's logits for a token behind a text.
  static std::vector<float> Logits(Engine& engine, std::size_t count) {
    const Tokens text = Text(1);
    Session session(engine, SequenceId{0});
    EXPECT_TRUE(session.Append(text).ok());
    const auto at = static_cast<Position>(text.size());
    const float* const known = engine.states()->Find(SequenceId{0}, at - 1);
    std::vector<float> state(known, known + engine.info().hidden_size);
    std::vector<float> logits(count + 1, -7.0f);  // one more than are written
    Cache& cache = CacheOfLayer(engine.cache(), engine.info().layers);
    const auto round = Transaction::Begin({&cache}, {{SequenceId{0}, at}}, {.max_tokens = 1});
    EXPECT_TRUE(round.ok());
    const Position position[] = {at};
    const SequenceId sequence[] = {SequenceId{0}};
    EXPECT_TRUE(cache
                    .StartForward({.positions = position, .sequences = sequence, .items = {}},
                                  ForwardMode::kCompute)
                    .ok());
    const std::int32_t token[] = {9};
    EXPECT_TRUE(
        engine.model()
            .Draft(token, position, state.data(), engine.cache(), logits.data(), state.data())
            .ok());
    EXPECT_EQ(logits.back(), -7.0f);
    logits.pop_back();
    return logits;
  }

  static GenerateResult Answer(Engine& engine, Drafter* drafter, int depth, float temperature) {
    GenerateRequest request;
    request.prompt = Text(3);
    request.max_tokens = 100;
    request.sampling = {.temperature = temperature, .seed = 4};
    request.drafter = drafter;
    request.draft_tokens = depth;
    const auto scheduler = std::move(*Scheduler::Make(engine, {}));
    auto result = Generate(*scheduler, request);
    EXPECT_TRUE(result.ok()) << result.status().message();
    EXPECT_TRUE(result->speculation.error.ok()) << result->speculation.error.message();
    return *std::move(result);
  }

  std::string folder_;
  std::unique_ptr<GgufFile> file_;
};

TEST_P(TrimmedHead, AnswersAreThoseWithout) {
  for (const std::size_t tokens : {std::size_t{1}, std::size_t{77}, std::size_t{400}}) {
    const auto engine = OpenWith(SomeOf(AllTokens(), tokens));
    const auto drafter = *MakeHeadDrafter(*engine);
    for (const float temperature : {0.0f, 0.9f}) {
      const GenerateResult plain = Answer(*engine, nullptr, 0, temperature);
      for (const int depth : {1, 5, 16, -1}) {
        const GenerateResult drafted = Answer(*engine, drafter.get(), depth, temperature);
        ASSERT_EQ(drafted.tokens, plain.tokens) << tokens << " tokens, depth " << depth;
        ASSERT_EQ(drafted.stop, plain.stop);
        if (depth > 0) {
          ASSERT_GT(drafted.speculation.drafted, 0);
        }
      }
    }
  }
}

TEST_P(TrimmedHead, DraftsAreTokensOfTheTable) {
  for (const std::size_t count : {std::size_t{1}, std::size_t{20}, std::size_t{300}}) {
    const Ids ids = SomeOf(AllTokens(), count);
    const auto engine = OpenWith(ids);
    for (const Tokens& drafts : Drafts(*engine)) {
      for (const std::int32_t draft : drafts) {
        ASSERT_NE(std::find(ids.begin(), ids.end(), draft), ids.end()) << draft;
      }
    }
  }
}

TEST_P(TrimmedHead, AllTokensInAnotherOrderAreDraftedAsByTheWholeHead) {
  const auto whole = *Open(model(), model());
  EXPECT_TRUE(whole->model().head_tokens().empty());
  const auto shuffled = OpenWith(SomeOf(AllTokens(), kVocabulary));
  EXPECT_EQ(std::ssize(shuffled->model().head_tokens()), kVocabulary);
  EXPECT_EQ(Drafts(*shuffled), Drafts(*whole));
}

// A token's logit has the same bits with any other tokens beside it.
TEST_P(TrimmedHead, LogitsAreThoseOfTheWholeHead) {
  const auto whole = *Open(model(), model());
  const std::vector<float> all = Logits(*whole, kVocabulary);
  for (const std::size_t count : {std::size_t{1}, std::size_t{77}, std::size_t{400}}) {
    const Ids ids = SomeOf(AllTokens(), count);
    const auto engine = OpenWith(ids);
    const std::vector<float> logits = Logits(*engine, count);
    for (std::size_t row = 0; row < count; ++row) {
      ASSERT_EQ(logits[row], all[static_cast<std::size_t>(ids[row])]) << row;
    }
  }
}

TEST_P(TrimmedHead, IsAlsoAPartOfTheModelsFile) {
  const Ids ids = SomeOf(AllTokens(), 60);
  const std::string path = folder_ + "/whole.gguf";
  WriteHead(*file_, {.tokens = ids}, Parts::kWholeModel, path);
  const auto plain = Open(path, "");
  ASSERT_TRUE(plain.ok()) << plain.status().message();
  const auto engine = Open(path, path);
  ASSERT_TRUE(engine.ok()) << engine.status().message();
  EXPECT_EQ(Drafts(**engine), Drafts(*OpenWith(ids)));
}

INSTANTIATE_TEST_SUITE_P(Types, TrimmedHead, ::testing::Values(DType::kF32, DType::kQ8_0),
                         [](const auto& type) { return std::string(InfoOf(type.param).name); });

using TrimmedHeadFile = TrimmedHead;

TEST_P(TrimmedHeadFile, ErrorsNameFileTensorValueAndRule) {
  const std::string matrix = StrCat("tensor '", kMatrix, "'");
  const struct {
    OwnOutput own;
    std::string error;
  } cases[] = {
      {{.tokens = {3, 4, 5}, .rows = 4},
       "'d2t' has 3 tokens: " + matrix + " has shape [128, 4]; must be [128, 3]"},
      {{.tokens = {3, 4, 5}, .rows = 2},
       "'d2t' has 3 tokens: " + matrix + " has shape [128, 2]; must be [128, 3]"},
      {{.tokens = {3, 4, kVocabulary}}, "tensor 'd2t' has token 512 in row 2; must be 0 to 511"},
      {{.tokens = {3, -1, 5}}, "tensor 'd2t' has token -1 in row 1; must be 0 to 511"},
      {{.tokens = {3, std::int64_t{1} << 32}},
       "tensor 'd2t' has token 4294967296 in row 1; must be 0 to 511"},
      {{.tokens = {3, 4, 5, 4}},
       "tensor 'd2t' has token 4 in rows 1 and 3; each token may occur once"},
      {{.tokens = {3, 4}, .type = GgmlType::kI32}, "tensor 'd2t' has type i32; must be i64"},
      {{.tokens = {3, 4, 5, 6}, .table_dims = {2, 2}},
       "tensor 'd2t' has shape [2, 2]; must be a vector"},
      {{.tokens = {3, 4}, .rows = 0},
       StrCat("tensor 'd2t' has the tokens of the rows of '", kMatrix, "', which is missing")},
      {{.tokens = Ids(kVocabulary + 1, 3)},
       "tensor 'd2t' has 513 tokens; must be 1 to 512, those of the vocabulary"},
      {{.tokens = {3, 4}, .has_table = false}, matrix + " has shape [128, 2]; must be [128, 512]"},
  };
  for (const auto& each : cases) {
    WriteHead(*file_, each.own, Parts::kHeadOnly, head());
    const auto engine = Open(model(), head());
    EXPECT_FALSE(engine.ok()) << each.error;
    EXPECT_EQ(engine.status().message(), StrCat(head(), ": ", each.error));
  }
}

INSTANTIATE_TEST_SUITE_P(Files, TrimmedHeadFile, ::testing::Values(DType::kF32));

}  // namespace
}  // namespace kvcache::trimmed_head_test
