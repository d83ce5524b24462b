#include "chat_template/picture_places.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/errors.h"
#include "base/strings.h"

namespace kvcache {

std::vector<std::size_t> PlacePictures(const PictureMarks& marks, ChatText& text) {
  std::vector<std::size_t> places;
  if (marks.in_template.empty()) return places;
  std::string out;
  std::vector<TextRange> foreign;
  std::size_t next = 0;  // of text.foreign
  std::size_t copied = 0;
  const auto copy_to = [&](std::size_t end) {
    const std::size_t shift = out.size() - copied;
    for (; next < text.foreign.size() && text.foreign[next].end <= end; ++next) {
      foreign.push_back({text.foreign[next].begin + shift, text.foreign[next].end + shift});
    }
    out.append(text.text, copied, end - copied);
    copied = end;
  };
  std::size_t from = 0;  // a range of text.foreign
  for (std::size_t at = 0; (at = text.text.find(marks.in_template, at)) != std::string::npos;) {
    const std::size_t end = at + marks.in_template.size();
    while (from < text.foreign.size() && text.foreign[from].end <= at) ++from;
    if (from < text.foreign.size() && text.foreign[from].begin < end) {  // it was typed
      ++at;
      continue;
    }
    copy_to(at);
    out += marks.before;
    places.push_back(out.size());
    out += marks.after;
    copied = at = end;
  }
  copy_to(text.text.size());
  text = {std::move(out), std::move(foreign)};
  return places;
}

Status CheckPlaces(std::size_t places, std::size_t pictures) {
  if (places == pictures) return Status::Ok();
  return InvalidArgument(StrCat("the conversation has ", pictures,
                                " pictures, and the template writes ", places,
                                " places for pictures"));
}

Status InsertPictures(const std::vector<std::size_t>& places, std::vector<PicturePtr> pictures,
                      ChatPrompt& prompt) {
  std::vector<TokenAnchor>& anchors = prompt.marked.anchors;
  std::vector<std::int32_t>& tokens = prompt.marked.tokens;
  for (std::size_t i = places.size(); i-- > 0;) {  // the last one first: the places before it stay
    const auto found = std::lower_bound(
        anchors.begin(), anchors.end(), places[i],
        [](const TokenAnchor& anchor, std::size_t byte) { return anchor.byte < byte; });
    if (found == anchors.end() || found->byte != places[i]) {
      return Unsupported("the vocabulary has no special token that ends a picture");
    }
    const auto ids = pictures[i]->ids();
    const std::string& name = pictures[i]->name();
    const auto index = static_cast<std::ptrdiff_t>(found->index);
    for (auto anchor = found; anchor != anchors.end(); ++anchor) {
      anchor->byte += name.size();
      anchor->index += ids.size();
    }
    tokens.insert(tokens.begin() + index, ids.begin(), ids.end());
    prompt.text.insert(places[i], name);
    for (TextRange& range : prompt.foreign) {
      if (range.begin < places[i]) continue;
      range.begin += name.size();
      range.end += name.size();
    }
    for (PromptPicture& later : prompt.pictures) later.begin += static_cast<Position>(ids.size());
    prompt.pictures.insert(prompt.pictures.begin(),
                           {static_cast<Position>(index), std::move(pictures[i])});
  }
  return Status::Ok();
}

}  // namespace kvcache
