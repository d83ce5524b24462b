#include "kvcache_engine/embedder.h"

#include <utility>

#include "base/errors.h"
#include "base/strings.h"
#include "embedding/decoder_embedder.h"
#include "embedding/embedding_keys.h"
#include "embedding/encoder_embedder.h"
#include "engine/gpu/gpu_backend.h"
#include "gguf/gguf.h"
#include "model/model.h"

namespace kvcache {

std::string_view NameOf(Pooling pooling) {
  switch (pooling) {
    case Pooling::kNone: return "none";
    case Pooling::kMean: return "mean";
    case Pooling::kCls: return "cls";
    case Pooling::kLast: return "last";
    case Pooling::kRank: return "rank";
  }
  return "?";
}

Result<Ranks> Embedder::RankTexts(std::string_view query, std::span<const std::string> documents,
                                  LongInput when_long, const EmbedOptions& options) {
  std::vector<std::vector<std::int32_t>> pairs;
  pairs.reserve(documents.size());
  for (std::size_t i = 0; i < documents.size(); ++i) {
    auto pair = EncodePair(query, documents[i], when_long);
    if (!pair.ok()) return std::move(pair).TakeStatus().WithContext(StrCat("document ", i));
    pairs.push_back(std::move(pair).value());
  }
  return Rank(pairs, options);
}

namespace {

Status CheckOptions(const EmbedderOptions& options) {
  if (options.context < 0) {
    return InvalidArgument(
        StrCat("the context is ", options.context, " tokens, expected at least 1"));
  }
  if (options.pass_tokens < 1) {
    return InvalidArgument(
        StrCat("a pass has ", options.pass_tokens, " tokens, expected at least 1"));
  }
  return Status::Ok();
}

}  // namespace

Result<std::unique_ptr<Embedder>> Embedder::Open(const std::string& path,
                                                 const EmbedderOptions& options,
                                                 std::unique_ptr<Backend> backend) {
  KVCACHE_RETURN_IF_ERROR(CheckOptions(options));
  KVCACHE_ASSIGN_OR_RETURN(std::unique_ptr<GgufFile> file, GgufFile::Open(path));
  std::string machine;
  if (backend == nullptr) {
    BackendWants wants{.threads = options.threads,
                       .uses_numa = options.uses_numa,
                       .gpu_layers = options.gpu_layers,
                       .cache = {},
                       .draft_head = {},
                       .adapters = options.adapters};
    // A decoder has the longest input and two passes in its cache, and many short sequences.
    constexpr int kSequences = 64;
    const bool has_cache = !IsTextEncoder(*file);
    const int longest = options.context > 0 ? options.context : kDefaultContext;
    wants.cache = {.context = options.pass_tokens + (has_cache ? longest + options.pass_tokens : 0),
                   .sequences = has_cache ? kSequences : 1,
                   .prefill_chunk = options.pass_tokens};
    KVCACHE_ASSIGN_OR_RETURN(BackendChoice choice, ChooseBackend(*file, wants));
    backend = std::move(choice.backend);
    machine = MachineLine(choice, 0);
  }
  auto embedder = IsTextEncoder(*file)
                      ? EncoderEmbedder::Open(std::move(file), options, std::move(backend))
                      : DecoderEmbedder::Open(path, options, std::move(backend));
  if (embedder.ok()) {
    (*embedder)->machine_ = std::move(machine);
    return embedder;
  }
  Status status = std::move(embedder).TakeStatus();
  // Most of the errors name the file already.
  const bool has_path = status.message().find(path) != std::string_view::npos;
  return has_path ? std::move(status) : std::move(status).WithContext(path);
}

Result<FilePurpose> PurposeOf(const std::string& path) {
  KVCACHE_ASSIGN_OR_RETURN(const std::unique_ptr<GgufFile> file, GgufFile::Open(path));
  auto stated = ReadPooling(*file);
  if (!stated.ok()) return std::move(stated).TakeStatus().WithContext(path);
  const Pooling pooling = stated->value_or(Pooling::kNone);
  if (pooling == Pooling::kRank) return FilePurpose::kReranking;
  if (pooling != Pooling::kNone || IsTextEncoder(*file)) return FilePurpose::kEmbedding;
  return FilePurpose::kGeneration;
}

}  // namespace kvcache
