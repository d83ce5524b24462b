#include "engine/request/check_logits.h"

#include <algorithm>
#include <cstddef>

#include "base/errors.h"
#include "base/strings.h"
#include "engine/engine_impl.h"
#include "engine/request/logit_scan.h"

namespace kvcache {

Status CheckLogits(const Engine& engine, std::span<const float> logits, std::int32_t tokens) {
  const auto is_nan = [](float logit) { return logit != logit; };
  auto bad = logits.end();
  ForBlocksWith(logits, is_nan, [&](std::size_t begin, std::size_t end) {
    if (bad != logits.end()) return;
    const auto last = logits.begin() + static_cast<std::ptrdiff_t>(end);
    const auto found =
        std::find_if(logits.begin() + static_cast<std::ptrdiff_t>(begin), last, is_nan);
    if (found != last) bad = found;
  });
  if (bad == logits.end()) return Status::Ok();
  return Corrupt(StrCat(engine.file().path(), ": after ", tokens,
                        tokens == 1 ? " token" : " tokens", " the logit of token ",
                        bad - logits.begin(), " is not a number: the model's weights are damaged"));
}

}  // namespace kvcache
