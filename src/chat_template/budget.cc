#include "chat_template/budget.h"

#include "base/strings.h"

namespace kvcache::jinja {

Status Budget::Refusal() const {
  return {StatusCode::kUnsupported,
          StrCat("the template does more than it may: ",
                 WithThousands(static_cast<std::int64_t>(units_)),
                 " units of work (a byte of text is one, a step ", kStep, ")")};
}

}  // namespace kvcache::jinja
