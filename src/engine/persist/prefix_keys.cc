#include "engine/persist/prefix_keys.h"

#include <string_view>

#include "base/little_endian.h"
#include "store/content_hash.h"

namespace kvcache {
namespace {

// SHA-256 of the key before, the number of tokens and the tokens, little-endian.
Result<StoreHash> KeyAfter(const StoreHash& parent, std::span<const std::int32_t> tokens) {
  std::vector<std::byte> text(parent.bytes.begin(), parent.bytes.end());
  AppendLittleEndian(tokens.size(), 4, text);
  for (const std::int32_t token : tokens) {
    AppendLittleEndian(static_cast<std::uint32_t>(token), 4, text);
  }
  return store::StoreHashOf(text);
}

// SHA-256 of a key, a word of five letters and a number, little-endian. No text of KeyAfter has as many
// bytes.
Result<StoreHash> ChainedKey(const StoreHash& parent, std::string_view word, std::uint64_t number) {
  std::vector<std::byte> text(parent.bytes.begin(), parent.bytes.end());
  for (const char letter : word) text.push_back(static_cast<std::byte>(letter));
  AppendLittleEndian(number, 8, text);
  return store::StoreHashOf(text);
}

Result<StoreHash> SaltedRoot(const StoreHash& root, std::uint64_t salt) {
  if (salt == 0) return root;
  return ChainedKey(root, "salt:", salt);
}

}  // namespace

Result<PrefixKeys> PrefixKeys::Make(const StoreHash& fingerprint) {
  constexpr std::string_view kText = "kvcache prefixes, version 1";
  KVCACHE_ASSIGN_OR_RETURN(const StoreHash root,
                           store::StoreHashOf(std::as_bytes(std::span(kText))));
  return PrefixKeys(fingerprint, root);
}

Result<StoredPiece> PrefixKeys::Nothing(std::uint64_t salt) const {
  KVCACHE_ASSIGN_OR_RETURN(const StoreHash root, SaltedRoot(root_, salt));
  return StoredPiece{{fingerprint_, root}, 0, 0};
}

Result<std::vector<StoredPiece>> PrefixKeys::Divide(std::span<const std::int32_t> tokens,
                                                    Position min, StoredPiece from,
                                                    const Accepts& accepts) const {
  std::vector<StoredPiece> pieces;
  const auto end = static_cast<Position>(tokens.size());
  for (Position size = kChunk; size >= min;) {
    bool is_taken = false;
    if (from.end + size <= end) {
      const auto text =
          tokens.subspan(static_cast<std::size_t>(from.end), static_cast<std::size_t>(size));
      KVCACHE_ASSIGN_OR_RETURN(const StoreHash key, KeyAfter(from.id.key, text));
      const StoredPiece piece{{fingerprint_, key}, from.end, from.end + size};
      is_taken = accepts(piece.id);
      if (is_taken) pieces.push_back(from = piece);
    }
    if (!is_taken || size < kChunk) size /= 2;
  }
  return pieces;
}

Result<std::vector<StoreHash>> PrefixKeys::Chain(std::span<const std::int32_t> tokens,
                                                 std::uint64_t salt) const {
  KVCACHE_ASSIGN_OR_RETURN(const StoreHash root, SaltedRoot(root_, salt));
  std::vector<StoreHash> chain{root};
  for (; tokens.size() >= kChunk; tokens = tokens.subspan(kChunk)) {
    KVCACHE_ASSIGN_OR_RETURN(StoreHash key, KeyAfter(chain.back(), tokens.first(kChunk)));
    chain.push_back(key);
  }
  return chain;
}

Result<ObjectId> PrefixKeys::OutputId(std::span<const std::int32_t> text,
                                      std::uint64_t salt) const {
  KVCACHE_ASSIGN_OR_RETURN(const StoreHash root, SaltedRoot(root_, salt));
  KVCACHE_ASSIGN_OR_RETURN(const StoreHash texts, ChainedKey(root, "text:", 0));
  KVCACHE_ASSIGN_OR_RETURN(const StoreHash key, KeyAfter(texts, text));
  return ObjectId{fingerprint_, key};
}

Result<ObjectId> PrefixKeys::ListId(const StoreHash& chunk) const {
  KVCACHE_ASSIGN_OR_RETURN(const StoreHash key, ChainedKey(chunk, "list:", 0));
  return ObjectId{fingerprint_, key};
}

Result<ObjectId> PrefixKeys::StateId(std::span<const StoreHash> chain,
                                     std::span<const std::int32_t> tokens) const {
  const std::size_t whole = tokens.size() / kChunk;
  KVCACHE_ASSIGN_OR_RETURN(const StoreHash key,
                           KeyAfter(chain[whole], tokens.subspan(whole * kChunk)));
  return ObjectId{fingerprint_, key};
}

}  // namespace kvcache
