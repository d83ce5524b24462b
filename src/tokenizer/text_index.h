// Finds texts by number and numbers by text: packed bytes and an open hash table.
//
//   bytes_    t h e ▁ t h e a …          all texts one after another
//   offsets_  0 3 9 10 …                 text i is [offsets_[i], offsets_[i + 1])
//   table_    (tag, i) (0, -1) …         open_hash_table.h
//
// The hash is keyed with a random number of the process, so that nobody can craft a file whose
// texts all collide.
//
// Thread safety: const calls may run concurrently.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kvcache/status.h"
#include "tokenizer/open_hash_table.h"

namespace kvcache {

class TextIndex {
 public:
  TextIndex() = default;

  // Copies the texts. Empty texts may occur more than once; Find never returns them.
  // Errors: kCorrupt: a text occurs twice (the message has both numbers); more than 2^24 texts or
  // 2^31 bytes.
  static Result<TextIndex> Make(const std::vector<std::string>& texts);

  std::int32_t size() const { return static_cast<std::int32_t>(offsets_.size()) - 1; }

  // REQUIRES: 0 <= i < size().
  std::string_view text(std::int32_t i) const {
    const std::uint32_t begin = offsets_[static_cast<std::size_t>(i)];
    return {bytes_.data() + begin, offsets_[static_cast<std::size_t>(i) + 1] - begin};
  }

  // Returns the number of `text`, -1 if there is none. O(length); O(1) if it is longer than all
  // texts.
  std::int32_t Find(std::string_view text) const;

 private:
  struct Slot {
    std::uint32_t tag = 0;
    std::int32_t number = -1;
    bool IsFree() const { return number < 0; }
  };

  std::uint64_t Hash(std::string_view text) const;
  Status Pack(const std::vector<std::string>& texts);
  Status Insert(std::int32_t number);

  std::string bytes_;
  std::vector<std::uint32_t> offsets_{0};
  OpenHashTable<Slot> table_;
  std::uint64_t key_ = 0;
  std::size_t max_length_ = 0;
};

}  // namespace kvcache
