#include "server/request/template_fields.h"

#include <string>

namespace kvcache::server {
namespace {

// Reads how the prompt ends.
void ReadEnd(Fields& fields, ChatInput& input) {
  const bool says_add = fields.Has("add_generation_prompt");
  const bool says_continue = fields.Has("continue_final_message");
  const bool adds = fields.Bool("add_generation_prompt", true);
  const bool continues = fields.Bool("continue_final_message", false);
  if (says_add && adds && continues) {
    return fields.Fail("continue_final_message",
                       "cannot be true if 'add_generation_prompt' is true, too");
  }
  if (continues) {
    input.generation_prompt = GenerationPrompt::kContinue;
  } else if (says_add && !adds) {
    input.generation_prompt = GenerationPrompt::kOmit;
  } else if (says_add || says_continue) {
    input.generation_prompt = GenerationPrompt::kAdd;
  }
}

}  // namespace

void ReadTemplateFields(Fields& fields, ChatInput& input) {
  const std::string effort = fields.Text("reasoning_effort");
  if (!effort.empty()) input.variables["reasoning_effort"] = effort;
  if (effort == "none") input.variables["enable_thinking"] = false;
  if (const Json* const more = fields.Find("chat_template_kwargs"); more != nullptr) {
    if (!more->is_object()) return fields.Fail("chat_template_kwargs", "must be an object");
    input.variables.update(*more);
  }
  ReadEnd(fields, input);
}

void ReadThink(Fields& fields, bool reasons, ChatInput& input) {
  const Json* const think = fields.Find("think");
  if (think == nullptr) return;
  if (!think->is_boolean() && !think->is_string()) {
    return fields.Fail("think", "must be true, false or a level");
  }
  input.variables["enable_thinking"] = *think != false;
  if (*think == false) return;
  if (!reasons) return fields.Fail("think", "is not supported by this model");
  if (think->is_string()) input.variables["reasoning_effort"] = *think;
}

}  // namespace kvcache::server
