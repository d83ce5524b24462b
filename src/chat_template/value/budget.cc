#include "chat_template/value/budget.h"

#include "base/errors.h"
#include "base/strings.h"

namespace kvcache::jinja {

Status Budget::Exhausted() const {
  return Unsupported(StrCat("the template exceeds the limit of ",
                            WithThousands(static_cast<std::int64_t>(units_)),
                            " units of work; a byte of text costs 1, a step ", kStep));
}

}  // namespace kvcache::jinja
