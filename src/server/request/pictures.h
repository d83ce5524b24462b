// Pictures in requests. A model without a tower reads text only, so a request with a picture is refused. An agent that
// once sent one sends it with each later request; the flag --ignore-images puts a note in its place instead.
//
// For a model with a tower, a text that stands for the picture takes its place (models/picture_book.h).
//
// Files, sounds and videos are treated alike.
//
// Thread safety: free functions.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "kvcache/status.h"
#include "server/request/fields.h"

namespace kvcache::server {

// Returns what a part of a content with this type is ("picture", "file", …); empty: it may be a text.
std::string_view PictureKind(std::string_view part_type);

// Returns the end of an error about such a part: how to ignore it.
std::string IgnoreImagesHint();

// Returns whether TakePictures finds pictures in a request of any API.
bool HasPictures(const Json& body);

// Takes a picture's file. Returns the text that stands for it. `name` begins messages ("picture 2").
using PictureTaker =
    std::function<Result<std::string>(std::span<const std::byte> file, const std::string& name)>;
// Puts texts in the places of pictures: OpenAI's "image_url" and "input_image", Anthropic's "image", also in results of
// tools, and Ollama's "images", which go before the text. Files and sounds stay. Errors: kInvalidArgument, with the
// place, for a picture that is neither base64 nor a data URL; those of `take`.
Status TakePictures(Json& body, const PictureTaker& take);

// Puts notes in the places of pictures, in the conversation of a request of any API: "messages", "input",
// "system", and in results of tools; Ollama's "images" become notes behind the text. It changes nothing that
// has another form than the APIs say.
void ReplacePictures(Json& body);

}  // namespace kvcache::server
