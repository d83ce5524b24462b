// Turns the items of /v1/responses into the messages that templates read.
//
// Thread safety: free functions.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "kvcache/status.h"
#include "server/request/fields.h"

namespace kvcache::server::responses {

// Returns the item that an item_reference names.
using FindItem = std::function<std::optional<Json>(const std::string& id)>;

// Appends the messages of `input`, a text or an array of items, to `messages`. Items of one answer (thoughts,
// text, calls) become one message. If the input was compacted, so do messages of the user between two answers. Items
// of unknown types are skipped. Errors: kInvalidArgument with the name of the item; kNotFound for a reference that
// `find` does not know.
Status AppendItems(const Json& input, const FindItem& find, Json& messages);

// Returns the items of an input as /v1/responses/{id}/input_items shows them: with types, ids and arrays of content
// parts, and what references name. REQUIRES: AppendItems takes the input.
Json WholeItems(const Json& input, const FindItem& find);

// Thoughts that a client gives back without reading them. They are not encrypted.
std::string SealThoughts(std::string_view thoughts);
// The summary of a conversation that a client gives back, likewise.
std::string SealSummary(std::string_view summary);

}  // namespace kvcache::server::responses
