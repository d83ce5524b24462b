// The pictures of a service's requests. Requests are read as texts; a mark stands in a text for a picture until the
// template writes the prompt. Nobody can write the mark of a picture who was not given it.
//
// Thread safety: any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "chat_template/chat_template.h"
#include "kvcache/status.h"
#include "kvcache_engine/picture.h"

namespace kvcache::server {

// A text, and the picture behind it.
struct TextBefore {
  std::string text{};
  PicturePtr picture{};  // null: the text is the last
};

class PictureBook {
 public:
  // Pictures that are kept for stored conversations after their requests: the last ones, with this many cells in all, and
  // the last one in any case. The pixels of a cell have 10 KB at most.
  static constexpr std::size_t kKept = 32;
  static constexpr std::int64_t kKeptCells = 16384;

  PictureBook();

  // Returns the mark of a picture. It is known as long as a PicturePtr exists, or it is among the last ones.
  std::string Add(const PicturePtr& picture);

  // Divides a text at the marks. Errors: kInvalidArgument for the mark of a picture that is not known any more.
  Result<std::vector<TextBefore>> Divide(std::string_view text) const;
  // Puts parts for pictures in the place of the marks in contents of messages, and the pictures into the input. Errors:
  // those of Divide.
  Status PutInto(ChatInput& input) const;
  // Returns whether a text is the mark of a picture.
  static bool IsMark(std::string_view text);

 private:
  std::string MarkOf(const Picture& picture) const;

  const std::string secret_;
  mutable std::mutex mutex_;
  std::map<std::string, std::weak_ptr<const Picture>, std::less<>> known_;  // guarded by mutex_
  std::list<PicturePtr> kept_;                                              // guarded by mutex_
};

}  // namespace kvcache::server
