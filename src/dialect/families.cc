#include <algorithm>

#include "dialect/dialect.h"

namespace kvcache {

const std::vector<Dialect>& Dialects() {
  static const std::vector<Dialect> all = {
      {.name = "hermes",
       .calls = {.form = CallForm::kObject,
                 .section_begin = "<tool_call>",
                 .section_end = "</tool_call>"}},
      {.name = "json", .calls = {.form = CallForm::kObject}},
      {.name = "plain"},
  };
  return all;
}

const Dialect* FindDialect(std::string_view name) {
  const auto found = std::find_if(Dialects().begin(), Dialects().end(),
                                  [&](const Dialect& each) { return each.name == name; });
  return found == Dialects().end() ? nullptr : &*found;
}

SharedDialect PlainDialect() {
  return std::make_shared<const Dialect>(*FindDialect("plain"));
}

}  // namespace kvcache
