// Puts pictures into a prompt, where a template wrote its text for a picture.
//
//   …user\n<start_of_image>What is this?…              the template's text
//   …user\n\n\n<start_of_image>|<end_of_image>\n\nWhat is…    with PictureMarks; the picture's cells are at |
//
// Thread safety: pure functions.
#pragma once

#include <cstddef>
#include <vector>

#include "chat_template/chat_format.h"
#include "chat_template/chat_template.h"
#include "kvcache/status.h"

namespace kvcache {

// Replaces the template's own texts for pictures by what is around one. Returns the bytes at which the cells are.
std::vector<std::size_t> PlacePictures(const PictureMarks& marks, ChatText& text);

// Returns Ok if the template wrote as many places as there are pictures, else kInvalidArgument.
Status CheckPlaces(std::size_t places, std::size_t pictures);

// Puts the ids of the pictures among the tokens, and their names into the text, so that two texts differ if their
// pictures do. Errors: kUnsupported if no special token begins behind the cells.
Status InsertPictures(const std::vector<std::size_t>& places, std::vector<PicturePtr> pictures,
                      ChatPrompt& prompt);

}  // namespace kvcache
