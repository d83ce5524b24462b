#include "tokenizer/text_index.h"

#include <algorithm>
#include <bit>
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
  index.slots_.resize(std::bit_ceil(2 * texts.size() + 2));
  index.mask_ = index.slots_.size() - 1;
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
  std::uint64_t at = hash & mask_;
  for (; slots_[at].number >= 0; at = (at + 1) & mask_) {
    if (text(slots_[at].number) == added) {
      return Corrupt(StrCat("text ", Quoted(added, 64), " is both number ", slots_[at].number,
                            " and number ", number, "; must occur once"));
    }
  }
  slots_[at] = {static_cast<std::uint32_t>(hash >> 32), number};
  return Status::Ok();
}

std::int32_t TextIndex::Find(std::string_view wanted) const {
  if (wanted.empty() || wanted.size() > max_length_) return -1;
  const std::uint64_t hash = Hash(wanted);
  const auto tag = static_cast<std::uint32_t>(hash >> 32);
  for (std::uint64_t at = hash & mask_;; at = (at + 1) & mask_) {
    const Slot& slot = slots_[at];
    if (slot.number < 0) return -1;
    if (slot.tag == tag && text(slot.number) == wanted) return slot.number;
  }
}

}  // namespace kvcache
