// Adapters of sequences: what they compute, and that a sequence's bits depend on its own adapters only.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine_impl.h"
#include "kvcache_engine/session.h"
#include "make_model/families.h"
#include "make_model/make_model.h"
#include "model/model.h"
#include "support/assistant_pair.h"
#include "support/random_adapter.h"

namespace kvcache::adapters_test {
namespace {

using testing::AdapterTensors;
using testing::MakeAdapter;
using testing::RandomAdapter;
using Row = std::vector<float>;
using Tokens = std::vector<std::int32_t>;

constexpr int kCount = 20;

Tokens SomeTokens(int count, int first = 3) {
  Tokens tokens;
  for (int i = 0; i < count; ++i) tokens.push_back(first + (i * 37) % 200);
  return tokens;
}

class AdaptersTest : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    path_ = ::testing::TempDir() + "adapters." + std::to_string(getpid()) + ".gguf";
    Make(DType::kF32);
  }
  void TearDown() override { std::filesystem::remove(path_); }

  void Make(DType type) {
    make_model::Request request{.architecture = GetParam(), .type = type};
    const auto known = make_model::FindArchitecture(GetParam());
    ASSERT_TRUE(known.ok()) << known.status().message();
    if ((*known)->experts == make_model::ExpertUse::kNeeded) request.shape.experts = 4;
    const Status made = make_model::MakeModel(request, path_);
    ASSERT_TRUE(made.ok()) << made.message();
    base_ = GgufFile::Open(path_).value();
  }
  std::unique_ptr<Engine> Open(std::vector<EngineAdapter> adapters, int sequences = 4,
                               int threads = 2) {
    auto engine = Engine::Open(path_, {.threads = threads,
                                       .k_type = DType::kF32,
                                       .v_type = DType::kF32,
                                       .context = 128,
                                       .max_sequences = sequences,
                                       .prefill_chunk = 128,
                                       .adapters = std::move(adapters)});
    EXPECT_TRUE(engine.ok()) << engine.status().message();
    return engine.ok() ? std::move(engine).value() : nullptr;
  }
  // Returns the logits of all tokens, evaluated alone in passes of `chunk`.
  static std::vector<Row> Alone(Engine& engine, const Tokens& tokens, AdapterUses uses,
                                int chunk = 128) {
    std::vector<Row> rows;
    Session session(engine, SequenceId{0});
    EXPECT_TRUE(session.UseAdapters(uses).ok());
    for (std::size_t at = 0; at < tokens.size(); at += static_cast<std::size_t>(chunk)) {
      const auto part = std::span(tokens).subspan(
          at, std::min(tokens.size() - at, static_cast<std::size_t>(chunk)));
      const Status status = session.Append(part, [&](Position, std::int32_t count) -> Status {
        for (std::int32_t i = 0; i < count; ++i) {
          Row& row = rows.emplace_back(static_cast<std::size_t>(engine.vocabulary_size()));
          KVCACHE_RETURN_IF_ERROR(engine.Logits({&i, 1}, row.data()));
        }
        return Status::Ok();
      });
      EXPECT_TRUE(status.ok()) << status.message();
    }
    return rows;
  }
  static double LargestDifference(const std::vector<Row>& a, const std::vector<Row>& b) {
    double largest = 0.0;
    for (std::size_t i = 0; i < a.size(); ++i) {
      for (std::size_t j = 0; j < a[i].size(); ++j) {
        EXPECT_TRUE(std::isfinite(a[i][j]));
        largest = std::max(largest, std::abs(static_cast<double>(a[i][j]) - b[i][j]));
      }
    }
    return largest;
  }

  std::string path_;
  std::unique_ptr<GgufFile> base_;
};

// The model whose weights have the adapter in them is another computation of the same function.
TEST_P(AdaptersTest, LogitsAreThoseOfMergedWeights) {
  // A tied output does not have the embedding's adapter, but the merged weights do.
  const bool is_tied = base_->FindTensor("output.weight") == nullptr;
  const RandomAdapter wanted{
      .rank = 3, .alpha = 6.0f, .largest = 0.1f, .has = [&](std::string_view tensor) {
        return !is_tied || tensor != "token_embd.weight";
      }};
  const auto engine = Open({MakeAdapter(*base_, wanted)});
  const Tokens tokens = SomeTokens(kCount);
  const std::vector<AdapterUse> uses{{0, 0.5f}};
  const auto plain = Alone(*engine, tokens, {});
  const auto adapted = Alone(*engine, tokens, uses);
  const auto tensors = AdapterTensors(*base_, wanted);
  testing::RewriteTensors(path_, [&](const GgufTensor& tensor, std::span<float> values) {
    testing::MergeInto(tensor, values, tensors, 0.5 * 6.0 / 3.0);
  });
  const auto merged = Alone(*Open({}), tokens, {});
  EXPECT_GT(LargestDifference(adapted, plain), 0.05);
  EXPECT_LT(LargestDifference(adapted, merged), 2e-3);
}

// All architectures that generate. Embeddings' are in embedding/embedder_adapters_test.cc.
class EachMatrixTest : public AdaptersTest {
 public:
  static std::vector<std::string> Names() {
    std::vector<std::string> names;
    for (const std::string& name : SupportedArchitectures()) {
      const bool is_encoder = name.find("bert") != name.npos || name == "gemma-embedding";
      if (!is_encoder && name != "t5") names.push_back(name);
    }
    return names;
  }

 protected:
  // Returns whether the family multiplies by the tensor in a way that adapters have no part in.
  static bool IsFixed(std::string_view tensor) {
    if (GetParam() == "mllama") {
      return tensor.ends_with("cross_attn_k_proj.weight") ||
             tensor.ends_with("cross_attn_v_proj.weight");
    }
    return GetParam() == "gemma3n" && tensor.starts_with("altup_");
  }
  // mllama's second layer here, which texts without an image skip.
  static bool NeedsAnImage(std::string_view tensor) {
    return GetParam() == "mllama" && tensor.starts_with("blk.1.");
  }
};

TEST_P(EachMatrixTest, HasAnEffect) {
  const Tokens tokens = SomeTokens(kCount);
  const auto plain = Alone(*Open({}, 1), tokens, {});
  const std::vector<AdapterUse> uses{{0, 1.0f}};
  for (const std::string& name : testing::AdaptableTensors(*base_)) {
    const auto is_it = [&](std::string_view tensor) { return tensor == name; };
    const EngineAdapter adapter = MakeAdapter(*base_, {.largest = 0.5f, .has = is_it});
    if (IsFixed(name)) {
      const auto refused = Engine::Open(path_, {.context = 8, .adapters = {adapter}});
      EXPECT_NE(refused.status().message().find("that adapters can change"), std::string_view::npos)
          << name << refused.status().message();
      continue;
    }
    const auto engine = Open({adapter}, 1);
    ASSERT_NE(engine, nullptr) << name;
    const double change = LargestDifference(Alone(*engine, tokens, uses), plain);
    if (NeedsAnImage(name)) {
      EXPECT_EQ(change, 0.0) << name;
    } else {
      EXPECT_GT(change, 0.0) << name;
    }
  }
}

std::string NameOfTest(const ::testing::TestParamInfo<std::string>& test) {
  std::string name = test.param;
  std::ranges::replace(name, '-', '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Architectures, EachMatrixTest,
                         ::testing::ValuesIn(EachMatrixTest::Names()), NameOfTest);

TEST_P(AdaptersTest, BitsDependOnASequencesOwnAdapters) {
  const RandomAdapter second{.rank = 17, .alpha = 0.0f, .seed = 2, .largest = 0.05f};
  const auto engine = Open({MakeAdapter(*base_), MakeAdapter(*base_, second)});
  const std::vector<std::vector<AdapterUse>> uses{
      {}, {{0, 0.7f}}, {{0, 0.7f}, {1, -1.0f}}, {{1, 0.3f}}};
  std::vector<Tokens> texts;
  std::vector<std::vector<Row>> alone;
  for (std::size_t i = 0; i < uses.size(); ++i) {
    texts.push_back(SomeTokens(kCount, 3 + static_cast<int>(i)));
    alone.push_back(Alone(*engine, texts[i], uses[i]));
    ASSERT_EQ(Alone(*engine, texts[i], uses[i], 1), alone[i]) << i;
    ASSERT_EQ(Alone(*engine, texts[i], uses[i], 7), alone[i]) << i;
  }
  ASSERT_EQ(
      Alone(*Open({MakeAdapter(*base_), MakeAdapter(*base_, second)}, 4, 1), texts[2], uses[2]),
      alone[2]);
  // Without adapters the bits are those of an engine that has none.
  ASSERT_EQ(Alone(*Open({}), texts[0], {}), alone[0]);
  ASSERT_EQ(Alone(*engine, texts[0], std::vector<AdapterUse>{{0, 0.0f}}), alone[0]);
  ASSERT_NE(alone[1], Alone(*engine, texts[1], {}));

  // All in one pass.
  Tokens tokens;
  std::vector<Position> positions;
  std::vector<SequenceId> sequences;
  for (std::size_t i = 0; i < uses.size(); ++i) {
    ASSERT_TRUE(engine->SetAdapters(SequenceId{static_cast<int>(i)}, uses[i]).ok());
    for (int at = 0; at < kCount; ++at) {
      tokens.push_back(texts[i][static_cast<std::size_t>(at)]);
      positions.push_back(at);
      sequences.push_back(SequenceId{static_cast<int>(i)});
    }
  }
  const Status status =
      engine->Forward({.tokens = tokens, .positions = positions, .sequences = sequences});
  ASSERT_TRUE(status.ok()) << status.message();
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    Row row(static_cast<std::size_t>(engine->vocabulary_size()));
    const auto index = static_cast<std::int32_t>(i);
    ASSERT_TRUE(engine->Logits({&index, 1}, row.data()).ok());
    ASSERT_EQ(row, alone[i / kCount][i % kCount]) << i;
  }
}

TEST_P(AdaptersTest, TypesOfWeightsAndOfAdaptersMix) {
  Make(DType::kQ8_0);
  const RandomAdapter half{.rank = 8, .seed = 3, .type = GgmlType::kF16};
  const RandomAdapter block{.rank = 32, .seed = 4, .type = GgmlType::kQ8_0};
  const auto engine =
      Open({MakeAdapter(*base_), MakeAdapter(*base_, half), MakeAdapter(*base_, block)});
  const Tokens tokens = SomeTokens(kCount);
  const std::vector<AdapterUse> uses{{0, 0.5f}, {1, 0.5f}, {2, -0.5f}};
  const auto whole = Alone(*engine, tokens, uses);
  EXPECT_GT(LargestDifference(whole, Alone(*engine, tokens, {})), 0.01);
  EXPECT_EQ(Alone(*engine, tokens, uses, 1), whole);
}

INSTANTIATE_TEST_SUITE_P(Architectures, AdaptersTest,
                         ::testing::Values("llama", "qwen2", "qwen3", "gemma2", "gemma3", "gemma4",
                                           "phi3", "cohere2", "deepseek2", "llama4", "gpt-oss",
                                           "qwen3moe", "granitemoe", "lfm2", "qwen3next", "qwen35",
                                           "granitehybrid", "falcon-h1", "nemotron_h_moe",
                                           "mamba2"),
                         NameOfTest);

class AdapterUsesTest : public AdaptersTest {};

TEST_P(AdapterUsesTest, WrongUsesAreRefusedWithTheirValue) {
  const auto engine = Open({MakeAdapter(*base_), MakeAdapter(*base_, {.seed = 2})});
  const auto message = [&](std::vector<AdapterUse> uses) {
    const auto normal = engine->NormalAdapters(uses);
    return normal.ok() ? "" : normal.status().message();
  };
  EXPECT_EQ(message({{1, 2.0f}, {0, -1.0f}}), "");
  EXPECT_EQ(message({{2, 1.0f}}), "there is no adapter 2; the model has 2, with numbers from 0 on");
  EXPECT_EQ(message({{-1, 1.0f}}),
            "there is no adapter -1; the model has 2, with numbers from 0 on");
  EXPECT_EQ(message({{1, 1.0f}, {1, 2.0f}}), "adapter 1 is named twice");
  EXPECT_EQ(message({{0, NAN}}), "the scale of adapter 0 is nan; must be from -10000 to 10000");
  EXPECT_EQ(message({{1, 1e37f}}), "the scale of adapter 1 is 1e+37; must be from -10000 to 10000");
  EXPECT_EQ(message({{1, -1e4f}}), "");
  EXPECT_EQ(*engine->NormalAdapters(std::vector<AdapterUse>{{1, 2.0f}, {0, 0.0f}}),
            (std::vector<AdapterUse>{{1, 2.0f}}));
}

TEST_P(AdapterUsesTest, SaltsTellAdaptersAndScalesApart) {
  const auto engine = Open({MakeAdapter(*base_), MakeAdapter(*base_, {.seed = 2})});
  const auto other = Open({MakeAdapter(*base_, {.seed = 3}), MakeAdapter(*base_, {.seed = 2})});
  const auto salt = [](Engine& of, std::vector<AdapterUse> uses, std::uint64_t user = 0) {
    return of.SaltOf(user, uses);
  };
  EXPECT_EQ(salt(*engine, {}), 0);
  EXPECT_EQ(salt(*engine, {}, 7), 7);
  std::vector<std::uint64_t> salts{salt(*engine, {{0, 1.0f}}),
                                   salt(*engine, {{0, 0.5f}}),
                                   salt(*engine, {{1, 1.0f}}),
                                   salt(*engine, {{0, 1.0f}}, 7),
                                   salt(*engine, {{0, 1.0f}, {1, 1.0f}}),
                                   salt(*other, {{0, 1.0f}})};
  EXPECT_EQ(salt(*other, {{1, 1.0f}}), salts[2]) << "the number of an adapter is not a part of it";
  std::ranges::sort(salts);
  EXPECT_EQ(std::ranges::adjacent_find(salts), salts.end());
}

TEST_P(AdapterUsesTest, AForkHasTheAdaptersOfItsSource) {
  const auto engine = Open({MakeAdapter(*base_)});
  const Tokens tokens = SomeTokens(kCount);
  const std::vector<AdapterUse> uses{{0, 1.0f}};
  const auto whole = Alone(*engine, tokens, uses);
  Session source(*engine, SequenceId{1});
  ASSERT_TRUE(source.UseAdapters(uses).ok());
  ASSERT_TRUE(source.Append(std::span(tokens).first(12)).ok());
  EXPECT_FALSE(source.UseAdapters({}).ok());
  {
    Session fork(*engine, SequenceId{2});
    ASSERT_TRUE(fork.ForkFrom(source, 10).ok());
    ASSERT_TRUE(fork.Append(std::span(tokens).subspan(10)).ok());
    const auto last = *fork.LastLogits();
    EXPECT_EQ(Row(last.begin(), last.end()), whole.back());
  }
  Session next(*engine, SequenceId{2});  // has none of the session before it
  ASSERT_TRUE(next.Append(tokens).ok());
  const auto last = *next.LastLogits();
  EXPECT_EQ(Row(last.begin(), last.end()), Alone(*engine, tokens, {}).back());
}

TEST_P(AdapterUsesTest, WrongSequencesAndSourcesAreRefused) {
  const auto engine = Open({MakeAdapter(*base_)});
  const Tokens tokens = SomeTokens(kCount);
  const std::vector<AdapterUse> uses{{0, 1.0f}};
  const auto whole = Alone(*engine, tokens, uses);
  Session source(*engine, SequenceId{1});
  ASSERT_TRUE(source.UseAdapters(uses).ok());
  ASSERT_TRUE(source.Append(std::span(tokens).first(12)).ok());
  const auto message = [&](const Status& status) {
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  // A sequence that holds tokens keeps its adapters.
  EXPECT_EQ(message(engine->SetAdapters(SequenceId{1}, {})),
            "sequence 1 holds 12 tokens; adapters are for all of a text");
  EXPECT_TRUE(engine->SetAdapters(SequenceId{1}, uses).ok());
  EXPECT_EQ(message(engine->SetAdapters(SequenceId{9}, uses)),
            "sequence 9 is not one of the engine's 4");
  EXPECT_EQ(message(engine->SetAdapters(SequenceId{0}, std::vector<AdapterUse>{{1, 1.0f}})),
            "there is no adapter 1; the model has 1, with numbers from 0 on");

  const auto other_engine = Open({MakeAdapter(*base_)});
  Session other(*other_engine, SequenceId{1});
  ASSERT_TRUE(other.Append(std::span(tokens).first(3)).ok());
  Session fork(*engine, SequenceId{2});
  ASSERT_TRUE(fork.Append(tokens).ok());
  EXPECT_EQ(message(fork.ForkFrom(other, 3)), "the source is a session of another engine");
  EXPECT_EQ(message(fork.ForkFrom(source, 13)),
            "prefix length is 13; must be from 0 to 12, the source's tokens");
  EXPECT_EQ(fork.position(), kCount) << "an error changes nothing";
  // A session that has no adapters gets those of the source, whatever it holds.
  ASSERT_TRUE(fork.ForkFrom(source, 12).ok());
  ASSERT_TRUE(fork.ForkFrom(fork, 10).ok());
  EXPECT_EQ(fork.position(), 10);
  ASSERT_TRUE(fork.Append(std::span(tokens).subspan(10)).ok());
  const auto last = *fork.LastLogits();
  EXPECT_EQ(Row(last.begin(), last.end()), whole.back());
}

TEST_P(AdapterUsesTest, MemoryOfAdaptersIsCounted) {
  const auto without = Open({});
  const auto with = Open({MakeAdapter(*base_)});
  EXPECT_GT(with->WorkspaceBytes(), without->WorkspaceBytes());
  ASSERT_EQ(with->adapters().size(), 1);
  const AdapterInfo& info = with->adapters()[0];
  EXPECT_EQ(info.max_rank, 4);
  EXPECT_EQ(info.alpha, 8.0);
  EXPECT_EQ(info.digest.size(), 64);
  EXPECT_GT(info.bytes, 0);
  EXPECT_GT(info.pairs, 5);
}

INSTANTIATE_TEST_SUITE_P(Llama, AdapterUsesTest, ::testing::Values("llama"));

TEST(AdapterOfAnEncoderTest, ModelsWithAnEncoderRefuseAdapters) {
  const std::string path = ::testing::TempDir() + "t5." + std::to_string(getpid()) + ".gguf";
  ASSERT_TRUE(make_model::MakeModel({.architecture = "t5", .type = DType::kF32}, path).ok());
  const auto base = GgufFile::Open(path).value();
  const auto engine = Engine::Open(path, {.context = 32, .adapters = {MakeAdapter(*base)}});
  std::filesystem::remove(path);
  ASSERT_FALSE(engine.ok());
  EXPECT_NE(engine.status().message().find("t5 takes no adapters"), std::string::npos)
      << engine.status().message();
}

}  // namespace
}  // namespace kvcache::adapters_test
