#include "server/request/pictures.h"

#include <cstddef>
#include <functional>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "base/strings.h"
#include "server/request/data_url.h"

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

bool HasText(const Json& object, const char* key) {
  const auto text = object.find(key);
  return text != object.end() && text->is_string();
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

// The places of pictures in a request: parts of contents, and lists beside texts.
struct PicturePlaces {
  std::function<Status(Json& part, const std::string& place)> part;
  std::function<Status(Json& object, const char* text_key, const std::string& place)> beside;

  Status In(Json& content, const std::string& place) const {
    if (!content.is_array()) return Status::Ok();
    for (std::size_t i = 0; i < content.size(); ++i) {
      const std::string name = StrCat(place, "[", i, "]");
      if (PictureKind(TypeOf(content[i])) == "picture") {
        KVCACHE_RETURN_IF_ERROR(part(content[i], name));
      } else if (content[i].is_object() && content[i].contains("content")) {  // a tool's result
        KVCACHE_RETURN_IF_ERROR(In(content[i]["content"], name + ".content"));
      }
    }
    return Status::Ok();
  }

  Status Beside(Json& object, const char* text_key, const std::string& place) const {
    const auto images = object.find("images");
    if (images == object.end() || !images->is_array() || images->empty()) return Status::Ok();
    return beside(object, text_key, place + "images");
  }

  Status InMessage(Json& message, const std::string& place) const {
    KVCACHE_RETURN_IF_ERROR(Beside(message, "content", place + "."));
    for (const char* const key : {"content", "output"}) {
      const auto content = message.find(key);
      if (content == message.end()) continue;
      KVCACHE_RETURN_IF_ERROR(In(*content, StrCat(place, ".", key)));
    }
    return Status::Ok();
  }

  Status Visit(Json& body) const {
    if (!body.is_object()) return Status::Ok();
    if (const auto system = body.find("system"); system != body.end()) {
      KVCACHE_RETURN_IF_ERROR(In(*system, "system"));
    }
    if (HasText(body, "prompt")) {
      KVCACHE_RETURN_IF_ERROR(Beside(body, "prompt", ""));
    }
    for (const char* const name : {"messages", "input"}) {
      const auto list = body.find(name);
      if (list == body.end() || !list->is_array()) continue;
      for (std::size_t i = 0; i < list->size(); ++i) {
        if (!(*list)[i].is_object()) continue;
        KVCACHE_RETURN_IF_ERROR(InMessage((*list)[i], StrCat(name, "[", i, "]")));
      }
    }
    return Status::Ok();
  }
};

// Returns a text of the object, or nothing.
const std::string* TextOf(const Json& object, const char* key) {
  const auto found = object.is_object() ? object.find(key) : object.end();
  if (!object.is_object() || found == object.end()) return nullptr;
  return found->get_ptr<const std::string*>();
}

// Returns the file of a part in one of the APIs' forms.
Result<std::vector<std::byte>> FileOf(const Json& part) {
  const auto source = part.find("source");  // Anthropic's
  if (source != part.end()) {
    if (const std::string* const data = TextOf(*source, "data")) return DecodeBase64(*data);
    if (const std::string* const url = TextOf(*source, "url")) return ReadDataUrl(*url);
    return InvalidArgument("has a 'source' that is not of type \"base64\"");
  }
  if (const std::string* const url = TextOf(part, "image_url")) return ReadDataUrl(*url);
  const auto nested = part.find("image_url");
  if (nested != part.end()) {
    if (const std::string* const url = TextOf(*nested, "url")) return ReadDataUrl(*url);
  }
  return InvalidArgument("must have the picture as a data URL, or as base64");
}

}  // namespace

bool HasPictures(const Json& body) {
  // An end of the visit is an answer, and no error. Visit changes nothing itself.
  const auto found = [] { return Status(StatusCode::kNotFound, ""); };
  const PicturePlaces places{
      .part = [&](Json&, const std::string&) { return found(); },
      .beside = [&](Json&, const char*, const std::string&) { return found(); }};
  return !places.Visit(const_cast<Json&>(body)).ok();
}

Status TakePictures(Json& body, const PictureTaker& take) {
  int number = 0;
  const auto text_of = [&](const Result<std::vector<std::byte>>& file,
                           const std::string& place) -> Result<std::string> {
    if (!file.ok()) return InvalidArgument(StrCat("'", place, "' ", file.status().message()));
    return take(*file, StrCat("picture ", ++number));
  };
  const PicturePlaces places{
      .part = [&](Json& part, const std::string& place) -> Status {
        KVCACHE_ASSIGN_OR_RETURN(std::string text, text_of(FileOf(part), place));
        Json replaced = {{"type", "text"}, {"text", std::move(text)}};
        if (part.contains("cache_control")) replaced["cache_control"] = part["cache_control"];
        part = std::move(replaced);
        return Status::Ok();
      },
      .beside = [&](Json& object, const char* text_key, const std::string& place) -> Status {
        std::string texts;
        const Json images = std::move(object["images"]);
        object.erase("images");
        for (std::size_t i = 0; i < images.size(); ++i) {
          const std::string name = StrCat(place, "[", i, "]");
          const auto* const data = images[i].get_ptr<const std::string*>();
          if (data == nullptr) return InvalidArgument(StrCat("'", name, "' must be base64"));
          KVCACHE_ASSIGN_OR_RETURN(
              const std::string text,
              text_of(data->starts_with("data:") ? ReadDataUrl(*data) : DecodeBase64(*data), name));
          texts += text;
        }
        Json& text = object[text_key];
        if (text.is_null()) text = "";
        if (auto* const own = text.get_ptr<std::string*>()) own->insert(0, texts);
        return Status::Ok();
      }};
  return places.Visit(body);
}

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
  if (HasText(body, "prompt")) ReplaceBeside(body, "prompt");
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
