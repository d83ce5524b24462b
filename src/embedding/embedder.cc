#include "kvcache_engine/embedder.h"

#include <utility>

#include "base/errors.h"
#include "base/strings.h"

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

Result<std::unique_ptr<Embedder>> Embedder::Open(const std::string& path, const EmbedderOptions&,
                                                 std::unique_ptr<Backend>) {
  return Unsupported(StrCat(path, ": embeddings are not supported"));
}

Result<FilePurpose> PurposeOf(const std::string& path) {
  return Unsupported(StrCat(path, ": embeddings are not supported"));
}

}  // namespace kvcache
