#include "server/request/pictures.h"

#include <cstddef>
#include <utility>

#include "base/strings.h"

namespace kvcache::server {
namespace {

constexpr std::pair<std::string_view, std::string_view> kKinds[] = {
    {"image", "picture"}, {"image_url", "picture"}, {"input_image", "picture"},
    {"document", "file"}, {"file", "file"},         {"input_file", "file"},
    {"audio", "sound"},   {"input_audio", "sound"}, {"audio_url", "sound"},
    {"video", "video"},   {"input_video", "video"}, {"video_url", "video"},
};

std::string NoteOf(std::string_view kind) {
  return StrCat("[A ", kind, " was here. This model reads text only.]");
}

std::string TypeOf(const Json& part) {
  const Json type = part.is_object() ? part.value("type", Json()) : Json();
  return type.is_string() ? type.get<std::string>() : "";
}

// The parts of a content are joined, so a note has a line of its own.
void ReplaceIn(Json& content) {
  if (!content.is_array()) return;
  for (std::size_t i = 0; i < content.size(); ++i) {
    Json& part = content[i];
    const std::string_view kind = PictureKind(TypeOf(part));
    if (!kind.empty()) {
      Json note = {{"type", "text"}, {"text", NoteOf(kind)}};
      auto& text = note["text"].get_ref<std::string&>();
      if (i > 0) text.insert(0, "\n");
      if (i + 1 < content.size()) text += '\n';
      // A mark of the cache stays where it was.
      if (part.contains("cache_control")) note["cache_control"] = part["cache_control"];
      part = std::move(note);
    } else if (part.is_object() && part.contains("content")) {  // the result of a tool
      ReplaceIn(part["content"]);
    }
  }
}

// Replaces Ollama's list of pictures beside a text.
void ReplaceBeside(Json& object, const char* text_key) {
  const auto images = object.find("images");
  if (images == object.end() || !images->is_array()) return;
  const std::size_t count = images->size();
  object.erase("images");
  Json& text = object[text_key];
  if (text.is_null()) text = "";
  if (!text.is_string()) return;
  auto& own = text.get_ref<std::string&>();
  for (std::size_t i = 0; i < count; ++i) own += (own.empty() ? "" : "\n") + NoteOf("picture");
}

}  // namespace

std::string_view PictureKind(std::string_view part_type) {
  for (const auto& [type, kind] : kKinds) {
    if (type == part_type) return kind;
  }
  return {};
}

std::string IgnoreImagesHint() {
  return "a server that was started with --ignore-images puts a note in its place";
}

void ReplacePictures(Json& body) {
  if (!body.is_object()) return;
  if (const auto system = body.find("system"); system != body.end()) ReplaceIn(*system);
  if (body.value("prompt", Json()).is_string()) ReplaceBeside(body, "prompt");
  for (const char* name : {"messages", "input"}) {
    const auto list = body.find(name);
    if (list == body.end() || !list->is_array()) continue;
    for (Json& message : *list) {
      if (!message.is_object()) continue;
      ReplaceBeside(message, "content");
      for (const char* key : {"content", "output"}) {
        if (const auto content = message.find(key); content != message.end()) ReplaceIn(*content);
      }
    }
  }
}

}  // namespace kvcache::server
