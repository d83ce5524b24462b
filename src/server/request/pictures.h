// Pictures in requests. The models here read text only, so a request with a picture is refused. An agent that
// once sent one sends it with each later request; the flag --ignore-images puts a note in its place instead.
//
// Files, sounds and videos are treated alike.
//
// Thread safety: free functions.
#pragma once

#include <string>
#include <string_view>

#include "server/request/fields.h"

namespace kvcache::server {

// Returns what a part of a content with this type is ("picture", "file", …); empty: it may be a text.
std::string_view PictureKind(std::string_view part_type);

// Returns the end of an error about such a part: how to ignore it.
std::string IgnoreImagesHint();

// Puts notes in the places of pictures, in the conversation of a request of any API: "messages", "input",
// "system", and in results of tools; Ollama's "images" become notes behind the text. It changes nothing that
// has another form than the APIs say.
void ReplacePictures(Json& body);

}  // namespace kvcache::server
