#include "engine/check_logits.h"

#include <algorithm>
#include <cmath>

#include "base/strings.h"
#include "engine/engine_impl.h"

namespace kvcache {

Status CheckLogits(const Engine& engine, std::span<const float> logits, std::int32_t tokens) {
  const auto bad = std::ranges::find_if(logits, [](float logit) { return std::isnan(logit); });
  if (bad == logits.end()) return Status::Ok();
  return {StatusCode::kCorrupt,
          StrCat(engine.file().path(), ": after ", tokens, tokens == 1 ? " token" : " tokens",
                 " the logit of token ", bad - logits.begin(),
                 " is not a number: the model's weights are damaged")};
}

}  // namespace kvcache
