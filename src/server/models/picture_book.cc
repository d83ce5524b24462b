#include "server/models/picture_book.h"

#include <algorithm>
#include <random>
#include <utility>

#include "base/errors.h"
#include "base/sha256.h"
#include "base/strings.h"

namespace kvcache::server {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kBegin = "\x02[picture ";
constexpr std::string_view kEnd = "]\x03";
constexpr std::size_t kDigits = 32;
constexpr std::size_t kMarkBytes = kBegin.size() + kDigits + kEnd.size();

std::string RandomText() {
  std::random_device random;
  std::string text;
  for (int i = 0; i < 8; ++i) text += StrCat(random(), " ");
  return text;
}

// Returns the parts of a content.
Json PartsOf(std::vector<TextBefore> divided, std::vector<PicturePtr>& pictures) {
  Json parts = Json::array();
  for (TextBefore& piece : divided) {
    if (!piece.text.empty()) {
      parts.push_back({{"type", "text"}, {"text", std::move(piece.text)}});
    }
    if (piece.picture == nullptr) continue;
    parts.push_back({{"type", "image"}, {"picture", piece.picture->name()}});
    pictures.push_back(std::move(piece.picture));
  }
  return parts;
}

}  // namespace

bool PictureBook::IsMark(std::string_view text) {
  return text.size() == kMarkBytes && text.starts_with(kBegin) && text.ends_with(kEnd);
}

PictureBook::PictureBook() : secret_(RandomText()) {}

std::string PictureBook::MarkOf(const Picture& picture) const {
  const std::string text = secret_ + picture.name();
  const Sha256Hash hash = Sha256Of(std::as_bytes(std::span(text)));
  return StrCat(kBegin, HexText(std::span(hash).first(kDigits / 2)), kEnd);
}

std::string PictureBook::Add(const PicturePtr& picture) {
  std::string mark = MarkOf(*picture);
  const std::lock_guard lock(mutex_);
  std::erase_if(known_, [](const auto& entry) { return entry.second.expired(); });
  known_[mark] = picture;
  std::erase_if(kept_, [&](const PicturePtr& kept) { return kept->name() == picture->name(); });
  kept_.push_front(picture);
  std::int64_t cells = 0;
  for (const PicturePtr& kept : kept_) cells += kept->cells();
  while (kept_.size() > kKept || (kept_.size() > 1 && cells > kKeptCells)) {
    cells -= kept_.back()->cells();
    kept_.pop_back();
  }
  return mark;
}

Result<std::vector<TextBefore>> PictureBook::Divide(std::string_view text) const {
  std::vector<TextBefore> pieces;
  std::string before;
  while (true) {
    const std::size_t at = text.find(kBegin);
    if (at == std::string_view::npos) break;
    const std::string_view mark = text.substr(at, kMarkBytes);
    if (!IsMark(mark)) {  // somebody typed it
      before += text.substr(0, at + 1);
      text.remove_prefix(at + 1);
      continue;
    }
    PicturePtr picture;
    {
      const std::lock_guard lock(mutex_);
      const auto found = known_.find(mark);
      if (found != known_.end()) picture = found->second.lock();
    }
    if (picture == nullptr) {
      return InvalidArgument("a picture of the conversation is not known any more; send it again");
    }
    before += text.substr(0, at);
    pieces.push_back({std::exchange(before, {}), std::move(picture)});
    text.remove_prefix(at + kMarkBytes);
  }
  before += text;
  if (!before.empty() || pieces.empty()) pieces.push_back({std::move(before), nullptr});
  return pieces;
}

Status PictureBook::PutInto(ChatInput& input) const {
  for (Json& message : input.messages) {
    if (!message.is_object()) continue;
    const auto content = message.find("content");
    if (content == message.end() || !content->is_string()) continue;
    const auto& text = content->get_ref<const std::string&>();
    if (text.find(kBegin) == std::string::npos) continue;
    KVCACHE_ASSIGN_OR_RETURN(auto divided, Divide(text));
    if (divided.size() == 1 && divided.front().picture == nullptr) continue;
    *content = PartsOf(std::move(divided), input.pictures);
  }
  return Status::Ok();
}

}  // namespace kvcache::server
