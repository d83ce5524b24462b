#include "chat_template/value/callable.h"

#include <algorithm>

#include "base/errors.h"
#include "base/strings.h"

namespace kvcache::jinja {

Result<std::vector<const Value*>> Bind(const Arguments& arguments,
                                       std::initializer_list<std::string_view> names,
                                       std::size_t required) {
  if (arguments.positional.size() > names.size()) {
    return InvalidArgument(StrCat("the call has ", arguments.positional.size(),
                                  " arguments; at most ", names.size(), " are allowed"));
  }
  std::vector<const Value*> bound(names.size(), nullptr);
  for (std::size_t i = 0; i < arguments.positional.size(); ++i) {
    bound[i] = &arguments.positional[i];
  }
  for (const auto& [name, value] : arguments.named) {
    const auto found = std::find(names.begin(), names.end(), name.bytes());
    if (found == names.end())
      return InvalidArgument(StrCat("argument ", Quoted(name.bytes()), " is not known"));
    const Value*& place = bound[static_cast<std::size_t>(found - names.begin())];
    if (place != nullptr)
      return InvalidArgument(StrCat("argument ", Quoted(name.bytes()), " is given twice"));
    place = &value;
  }
  for (std::size_t i = 0; i < required; ++i) {
    if (bound[i] == nullptr) {
      return InvalidArgument(StrCat("argument ", Quoted(names.begin()[i]), " is missing"));
    }
  }
  return bound;
}

}  // namespace kvcache::jinja
