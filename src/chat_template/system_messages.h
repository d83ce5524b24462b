// Puts system messages where a template can write them.
//
// Clients put system messages anywhere in a conversation. Many templates take only one, at the beginning;
// others raise an error, write none, or write all of them at the top, which changes the prompt from its
// beginning. A template is asked once, with short conversations, where it writes a system message in its
// place without a change of what stands before. Everywhere else the text becomes part of the user's turn:
//
//   user U, system S             user "U\n\nS"
//   user U, system S, user V     user "U\n\nS\n\nV"
//   assistant, system S, user U  assistant, user "S\n\nU"
//   tool R, system S             tool R, user S; or tool "R\n\nS" if no user may speak after a result
//   system S, system T           system "S\n\nT"
//
// The place of a message depends on the messages before it and on the next one only. So a conversation that
// grows keeps its prompt's beginning.
//
// Thread safety: free functions.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>

#include "chat_template/chat_template.h"

namespace kvcache {

// Where a template writes system messages.
struct SystemPlaces {
  bool first = true;       // at the beginning
  bool more_first = true;  // behind another one at the beginning
  bool after_user = true;
  bool after_answer = true;
  bool after_result = true;
  bool user_after_result = true;  // whether a message of the user may follow a tool's result
};

// Asks a template.
SystemPlaces FindSystemPlaces(const ChatTemplate& chat_template);

// Moves the texts of system messages in `messages`, an array of objects with roles. Contents that are not
// texts stay where they are.
void PlaceSystemMessages(const SystemPlaces& places, nlohmann::ordered_json& messages);

}  // namespace kvcache
