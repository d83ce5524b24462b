#include "tokenizer/text_index.h"

#include <algorithm>
#include <cstring>

#include "base/errors.h"
#include "base/keyed_hash.h"
#include "base/strings.h"

namespace kvcache {
namespace {

constexpr std::size_t kMaxTexts = std::size_t{1} << 24;
constexpr std::size_t kMaxBytes = std::size_t{1} << 31;

std::uint64_t Load8(const char* at) {
  std::uint64_t value;
  std::memcpy(&value, at, sizeof(value));
  return value;
}

std::uint64_t Load4(const char* at) {
  std::uint32_t value;
  std::memcpy(&value, at, sizeof(value));
  return value;
}

// Hashes up to 16 bytes as two words, which may overlap.
std::uint64_t HashShort(const char* at, std::size_t length, std::uint64_t key) {
  std::uint64_t a = 0;
  std::uint64_t b = 0;
  if (length >= 8) {
    a = Load8(at);
    b = Load8(at + length - 8);
  } else if (length >= 4) {
    a = Load4(at);
    b = Load4(at + length - 4);
  } else if (length > 0) {
    const auto byte = [&](std::size_t i) {
      return std::uint64_t{static_cast<std::uint8_t>(at[i])};
    };
    a = byte(0) << 16 | byte(length / 2) << 8 | byte(length - 1);
  }
  return MixHash(a ^ key ^ kHashOdd1, b ^ MixHash(length ^ kHashOdd2, key));
}

}  // namespace

std::uint64_t TextIndex::Hash(std::string_view text) const {
  const char* at = text.data();
  std::size_t left = text.size();
  std::uint64_t state = key_;
  for (; left > 16; at += 16, left -= 16) {
    state = MixHash(Load8(at) ^ state ^ kHashOdd1, Load8(at + 8) ^ MixHash(state, kHashOdd2));
  }
  return HashShort(at, left, state);
}

Result<TextIndex> TextIndex::Make(const std::vector<std::string>& texts) {
  TextIndex index;
  KVCACHE_RETURN_IF_ERROR(index.Pack(texts));
  index.table_ = OpenHashTable<Slot>(texts.size());
  index.key_ = ProcessHashKey();
  for (std::int32_t i = 0; i < index.size(); ++i) KVCACHE_RETURN_IF_ERROR(index.Insert(i));
  return index;
}

Status TextIndex::Pack(const std::vector<std::string>& texts) {
  if (texts.size() > kMaxTexts) {
    return Corrupt(
        StrCat("there are ", texts.size(), " texts; at most ", kMaxTexts, " are allowed"));
  }
  std::size_t total = 0;
  for (const std::string& text : texts) {
    total += text.size();
    max_length_ = std::max(max_length_, text.size());
  }
  if (total > kMaxBytes) {
    return Corrupt(StrCat("the texts take ", total, " bytes; at most ", kMaxBytes, " are allowed"));
  }
  bytes_.reserve(total);
  offsets_.reserve(texts.size() + 1);
  for (const std::string& text : texts) {
    bytes_ += text;
    offsets_.push_back(static_cast<std::uint32_t>(bytes_.size()));
  }
  return Status::Ok();
}

Status TextIndex::Insert(std::int32_t number) {
  const std::string_view added = text(number);
  if (added.empty()) return Status::Ok();
  const std::uint64_t hash = Hash(added);
  Slot& slot = table_.Find(hash, [&](const Slot& taken) { return text(taken.number) == added; });
  if (!slot.IsFree()) {
    return Corrupt(StrCat("text ", Quoted(added, 64), " is both number ", slot.number,
                          " and number ", number, "; must occur once"));
  }
  slot = {static_cast<std::uint32_t>(hash >> 32), number};
  return Status::Ok();
}

std::int32_t TextIndex::Find(std::string_view wanted) const {
  if (wanted.empty() || wanted.size() > max_length_) return -1;
  const std::uint64_t hash = Hash(wanted);
  const auto tag = static_cast<std::uint32_t>(hash >> 32);
  const auto matches = [&](const Slot& slot) {
    return slot.tag == tag && text(slot.number) == wanted;
  };
  return table_.Find(hash, matches).number;
}

}  // namespace kvcache
