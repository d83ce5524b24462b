// Imports of models for embeddings: vocabularies, the tokens around texts, and what sentence-transformers adds. That tensors and
// keys are right is import_model_test.cc's.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "base/strings.h"
#include "convert/embedding/hf_text_ends.h"
#include "convert/hf_tokenizer.h"
#include "convert/import_model.h"
#include "import/hf_encoders.h"
#include "import/hf_writer.h"
#include "kvcache_engine/embedder.h"
#include "make_model/make_model.h"
#include "tokenizer/tokenizer.h"

namespace kvcache::import_embedding_test {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Ids = std::vector<std::int32_t>;

Ids Encode(const json& tokenizer, std::string_view text) {
  auto converted = ConvertHfTokenizer(tokenizer, 100, HfFallbackKind::kScores);
  EXPECT_TRUE(converted.ok()) << converted.status().message();
  if (!converted.ok()) return {};
  const auto made = MakeTokenizer(converted->data);
  EXPECT_TRUE(made.ok()) << made.status().message();
  return *(*made)->Encode(text, {.add_bos = AddToken::kNo, .add_eos = AddToken::kNo});
}

std::string Refusal(const json& tokenizer) {
  const auto converted = ConvertHfTokenizer(tokenizer, 100, HfFallbackKind::kScores);
  return converted.ok() ? "" : converted.status().message();
}

// The ids of WordPieceJson: a letter, and a letter inside a word.
constexpr std::int32_t kLetter = 5, kInside = 31;

TEST(WordPieceVocabulary, CutsWordsAsPublished) {
  const json tokenizer = WordPieceJson(90);
  EXPECT_THAT(Encode(tokenizer, "ab c"), ElementsAre(kLetter, kInside + 1, kLetter + 2));
  EXPECT_THAT(Encode(tokenizer, "W7 \xc3\xa9"), ElementsAre(kInside + 26 + 7, kLetter + 4))
      << "in lower case and without accents";
  EXPECT_THAT(Encode(tokenizer, "[CLS]"), ::testing::Not(::testing::Contains(2)));
  EXPECT_THAT(Encode(tokenizer, "\xe4\xb8\xad"), ElementsAre(1)) << "unknown";
  json cased = tokenizer;
  cased["normalizer"]["lowercase"] = false;
  EXPECT_THAT(Encode(cased, "A"), ElementsAre(1));
}

TEST(WordPieceVocabulary, WrongOnesAreRefused) {
  const auto with = [](const char* place, const json& value) {
    json tokenizer = WordPieceJson(90);
    tokenizer[json::json_pointer(place)] = value;
    return Refusal(tokenizer);
  };
  EXPECT_THAT(with("/normalizer/type", "NFC"), HasSubstr("normalizer is 'NFC'"));
  EXPECT_THAT(with("/normalizer/clean_text", false), HasSubstr("clean_text is false"));
  EXPECT_THAT(with("/pre_tokenizer/type", "Digits"), HasSubstr("pre_tokenizer is 'Digits'"));
  EXPECT_THAT(with("/model/vocab", json::array()), HasSubstr("model.vocab"));
  EXPECT_THAT(with("/model/vocab/a", -1), HasSubstr("the id of token"));
  EXPECT_THAT(with("/model/vocab/a", 6u), HasSubstr("have id 6"));
  EXPECT_THAT(with("/added_tokens", "x"), HasSubstr("added_tokens is no array"));
  EXPECT_THAT(with("/model/type", "WordLevel"), HasSubstr("BPE, WordPiece or Unigram"));
}

json UnigramJson() {
  json vocabulary = json::array();
  for (const auto& [text, score] :
       std::vector<std::pair<const char*, double>>{{"<s>", 0.0},
                                                   {"<pad>", 0.0},
                                                   {"</s>", 0.0},
                                                   {"<unk>", 0.0},
                                                   {"\u2581", -5.0},
                                                   {"\u2581a", -1.0},
                                                   {"b", -2.0},
                                                   {"\u2581ab", -2.5}}) {
    vocabulary.push_back(json::array({text, score}));
  }
  json added = json::array();
  for (int id = 0; id < 4; ++id) {
    added.push_back(
        {{"id", id}, {"content", vocabulary[static_cast<std::size_t>(id)][0]}, {"special", true}});
  }
  const auto special = [](const char* token) { return json{{"SpecialToken", {{"id", token}}}}; };
  const auto sequence = [](const char* name) { return json{{"Sequence", {{"id", name}}}}; };
  return {{"added_tokens", added},
          {"normalizer", nullptr},
          {"pre_tokenizer",
           {{"type", "Sequence"},
            {"pretokenizers",
             {{{"type", "WhitespaceSplit"}},
              {{"type", "Metaspace"}, {"replacement", "\u2581"}, {"add_prefix_space", true}}}}}},
          {"post_processor",
           {{"type", "TemplateProcessing"},
            {"single", {special("<s>"), sequence("A"), special("</s>")}},
            {"pair",
             {special("<s>"), sequence("A"), special("</s>"), special("</s>"), sequence("B"),
              special("</s>")}}}},
          {"model", {{"type", "Unigram"}, {"unk_id", 3}, {"vocab", vocabulary}}}};
}

TEST(UnigramVocabulary, ChoosesTheLikeliestTokens) {
  EXPECT_THAT(Encode(UnigramJson(), "ab  a"), ElementsAre(7, 5));
  EXPECT_THAT(Encode(UnigramJson(), " b"), ElementsAre(4, 6));
  EXPECT_THAT(Encode(UnigramJson(), "</s>"), ::testing::Not(::testing::Contains(2)));
  json with_map = UnigramJson();
  with_map["normalizer"] = {{"type", "Precompiled"}, {"precompiled_charsmap", "AAAAAP8="}};
  const auto converted = ConvertHfTokenizer(with_map, 8, HfFallbackKind::kScores);
  ASSERT_TRUE(converted.ok()) << converted.status().message();
  EXPECT_EQ(converted->data.charsmap, std::string("\0\0\0\0\xff", 5));
  EXPECT_EQ(converted->data.unknown, 3);
}

TEST(UnigramVocabulary, WrongOnesAreRefused) {
  const auto with = [](const char* place, const json& value) {
    json tokenizer = UnigramJson();
    tokenizer[json::json_pointer(place)] = value;
    return Refusal(tokenizer);
  };
  EXPECT_THAT(with("/model/vocab/5", "a"), HasSubstr("token 5 of model.vocab"));
  EXPECT_THAT(with("/model/vocab", json::object()), HasSubstr("no array of tokens and scores"));
  EXPECT_THAT(with("/model/byte_fallback", true), HasSubstr("byte_fallback"));
  EXPECT_THAT(with("/normalizer", {{"type", "Lowercase"}}), HasSubstr("normalizer is 'Lowercase'"));
  EXPECT_THAT(with("/normalizer", {{"type", "Precompiled"}, {"precompiled_charsmap", "!"}}),
              HasSubstr("base64"));
  EXPECT_THAT(with("/normalizer", {{"type", "Precompiled"}, {"precompiled_charsmap", "AQL/"}}),
              HasSubstr("precompiled_charsmap: it has 3 bytes"));
  EXPECT_THAT(with("/normalizer", {{"type", "Replace"}, {"content", "x"}}), HasSubstr("Replace"));
  EXPECT_THAT(with("/pre_tokenizer", {{"type", "ByteLevel"}}),
              HasSubstr("pre_tokenizer is 'ByteLevel'"));
}

TEST(TextEnds, AreThoseOfThePostProcessor) {
  const auto of = [](const json& processor) {
    auto ends = ReadHfTextEnds({{"post_processor", processor}});
    EXPECT_TRUE(ends.ok()) << ends.status().message();
    return ends->value_or(HfTextEnds{"none", "none"});
  };
  const HfTextEnds bert =
      of({{"type", "BertProcessing"}, {"sep", {"[SEP]", 102}}, {"cls", {"[CLS]", 101}}});
  EXPECT_EQ(bert.begin, "[CLS]");
  EXPECT_EQ(bert.end, "[SEP]");
  EXPECT_EQ(bert.between, 1);
  EXPECT_EQ(of({{"type", "RobertaProcessing"}, {"sep", {"</s>", 2}}, {"cls", {"<s>", 0}}}).between,
            2);
  EXPECT_EQ(of(UnigramJson()["post_processor"]).between, 2);
  EXPECT_EQ(of(WordPieceJson(60)["post_processor"]).between, 1);
  const json end = {{"SpecialToken", {{"id", "<|endoftext|>"}}}};
  const json text = {{"Sequence", {{"id", "A"}}}};
  const HfTextEnds qwen =
      of({{"type", "Sequence"},
          {"processors",
           {{{"type", "ByteLevel"}}, {{"type", "TemplateProcessing"}, {"single", {text, end}}}}}});
  EXPECT_EQ(qwen.begin, "");
  EXPECT_EQ(qwen.end, "<|endoftext|>");
  EXPECT_EQ(qwen.between, std::nullopt);
  EXPECT_EQ(of(nullptr).begin, "none");
  EXPECT_THAT(ReadHfTextEnds({{"post_processor",
                               {{"type", "TemplateProcessing"}, {"single", {text, end, end}}}}})
                  .status()
                  .message(),
              HasSubstr("one is supported"));
  EXPECT_THAT(ReadHfTextEnds({{"post_processor", {{"type", "Other"}}}}).status().message(),
              HasSubstr("post_processor 'Other'"));
}

// A directory of a random model, which is removed at the end.
class Directory {
 public:
  explicit Directory(make_model::Request request, const HfStyle& style = {})
      : path_(StrCat(::testing::TempDir(), "import_embedding.", getpid())) {
    request.shape.vocab = 601;
    request.shape.context = 64;
    EXPECT_TRUE(make_model::MakeModel(request, made()).ok());
    WriteHfDirectory(*GgufFile::Open(made()).value(), path_, style);
  }
  ~Directory() {
    std::filesystem::remove_all(path_);
    for (const std::string& file : {made(), imported()}) std::filesystem::remove(file);
  }
  const std::string& path() const { return path_; }
  std::string made() const { return path_ + ".made.gguf"; }
  std::string imported() const { return path_ + ".gguf"; }
  Status Import() const { return ImportModel({.directory = path_, .path = imported()}).status(); }
  std::unique_ptr<Embedder> Open() const {
    const Status status = Import();
    EXPECT_TRUE(status.ok()) << status.message();
    return Embedder::Open(imported(), {.threads = 1}).value();
  }

 private:
  std::string path_;
};

make_model::Request Encoder(const std::string& architecture, int pooling) {
  make_model::Request request{.architecture = architecture, .type = DType::kF32};
  request.shape.kv_heads = 4;
  request.shape.family.pooling = pooling;
  request.shape.family.labels = pooling == 4 ? 1 : 0;
  return request;
}

TEST(ImportEmbedding, TextsHaveTheirEndsAndVectorsThoseOfTheFile) {
  for (const char* architecture : {"bert", "nomic-bert"}) {
    const Directory directory(Encoder(architecture, 1));
    const auto embedder = directory.Open();
    EXPECT_EQ(embedder->info().pooling, Pooling::kMean);
    EXPECT_EQ(*embedder->EncodeInput("ab"), (Ids{2, kLetter, kInside + 1, 3}));
    const std::vector<Ids> inputs = {*embedder->EncodeInput("ab"), {2, 60, 61, 3}};
    const auto original = Embedder::Open(directory.made(), {.threads = 1}).value();
    EXPECT_EQ(embedder->Embed(inputs)->values, original->Embed(inputs)->values);
  }
}

TEST(ImportEmbedding, PairsHaveTheirSeparators) {
  {
    const Directory directory(Encoder("bert", 4));
    const auto embedder = directory.Open();
    EXPECT_TRUE(embedder->info().is_reranker);
    EXPECT_EQ(*embedder->EncodePair("a", "b"), (Ids{2, kLetter, 3, kLetter + 1, 3}));
  }
  const Directory directory(Encoder("bert", 4), {.first_positions = 2});
  json tokenizer = UnigramJson();
  WriteText(directory.path() + "/tokenizer.json", tokenizer.dump());
  const auto embedder = directory.Open();
  EXPECT_EQ(*embedder->EncodeInput("a"), (Ids{0, 5, 2}));
  EXPECT_EQ(*embedder->EncodePair("a", "ab"), (Ids{0, 5, 2, 2, 7, 2}));
}

TEST(ImportEmbedding, DecodersEndTextsAsTheirPostProcessorSays) {
  make_model::Request request{.architecture = "qwen3", .type = DType::kF32};
  request.shape.family.pooling = 3;
  const Directory directory(request);
  const std::string path = directory.path() + "/tokenizer.json";
  const auto embedder = directory.Open();
  EXPECT_EQ(embedder->info().pooling, Pooling::kLast);
  EXPECT_EQ(embedder->EncodeInput("a")->front(), 1) << "make_model's template puts <s> in front";
}

TEST(ImportEmbedding, ModulesThatAreNotKnownAreRefused) {
  const auto refusal = [](const json& module) {
    const Directory directory(Encoder("bert", 1), {.modules = json::array({module})});
    return directory.Import().message();
  };
  const auto module = [](const char* kind, const char* path) {
    return json{{"type", StrCat("sentence_transformers.models.", kind)}, {"path", path}};
  };
  EXPECT_EQ(refusal(module("Normalize", "9_Normalize")), "");
  EXPECT_THAT(refusal(module("LSTM", "9_LSTM")), HasSubstr("LSTM' is not supported"));
  EXPECT_THAT(refusal(module("Transformer", "0_Transformer")), HasSubstr("give this folder"));
  EXPECT_THAT(refusal(module("Pooling", "../x")), HasSubstr("is no plain name of a folder"));
  EXPECT_THAT(refusal(module("Pooling", "9_Pooling")), HasSubstr("there is no such folder"));
  EXPECT_THAT(refusal(module("Dense", "1_Pooling")),
              HasSubstr("a dense layer is not supported for bert"));
}

TEST(ImportEmbedding, FoldersOfModulesAreNotLeft) {
  const Directory directory(Encoder("bert", 1));
  namespace fs = std::filesystem;
  const std::string outside = directory.path() + ".outside";
  fs::remove_all(outside);
  fs::rename(directory.path() + "/1_Pooling", outside);
  fs::create_directory_symlink(outside, directory.path() + "/1_Pooling");
  EXPECT_THAT(directory.Import().message(), HasSubstr("outside of the model's directory"));
  fs::remove_all(outside);
}

TEST(ImportEmbedding, PoolingsThatAreNotKnownAreRefused) {
  const auto refusal = [](const json& settings) {
    const Directory directory(Encoder("bert", 1));
    WriteText(directory.path() + "/1_Pooling/config.json", settings.dump());
    return directory.Import().message();
  };
  EXPECT_THAT(refusal({{"pooling_mode_max_tokens", true}}),
              HasSubstr("pooling_mode_max_tokens is 'true'"));
  EXPECT_THAT(refusal({{"pooling_mode_mean_tokens", true}, {"pooling_mode_cls_token", true}}),
              HasSubstr("one pooling must be true"));
  EXPECT_THAT(refusal(json::object()), HasSubstr("one pooling must be true"));
  EXPECT_THAT(refusal({{"pooling_mode_cls_token", true}, {"word_embedding_dimension", 5}}),
              HasSubstr("must be 128, the hidden size"));
  EXPECT_THAT(refusal({{"pooling_mode_cls_token", true}, {"include_prompt", false}}),
              HasSubstr("include_prompt is 'false'"));
}

TEST(ImportEmbedding, SettingsOfOtherModelsAreRefused) {
  const auto refusal = [](const char* architecture, const json& config) {
    const Directory directory(Encoder(architecture, 1), {.config = config});
    return directory.Import().message();
  };
  for (const auto& [key, value] :
       std::vector<std::pair<const char*, json>>{{"hidden_act", "relu"},
                                                 {"position_embedding_type", "relative_key"},
                                                 {"is_decoder", true},
                                                 {"vocab_size", 91},
                                                 {"num_hidden_layers", 0}}) {
    EXPECT_THAT(refusal("bert", {{key, value}}), HasSubstr(key));
  }
  for (const auto& [key, value] :
       std::vector<std::pair<const char*, json>>{{"activation_function", "gelu"},
                                                 {"num_experts", 8},
                                                 {"rotary_emb_fraction", 0.5},
                                                 {"prenorm", true},
                                                 {"qkv_proj_bias", true}}) {
    EXPECT_THAT(refusal("nomic-bert", {{key, value}}), HasSubstr(key));
  }
  EXPECT_THAT(refusal("bert", {{"architectures", {"BertForSequenceClassification"}}}),
              HasSubstr("classifier.weight"));
  EXPECT_THAT(refusal("bert", {{"architectures", {"BertForMaskedLM"}}}), HasSubstr("known are:"));
}

}  // namespace
}  // namespace kvcache::import_embedding_test
