#include "platform/os_error.h"

#include <cerrno>
#include <system_error>

#include "base/strings.h"

namespace kvcache {

Status OsError(std::string_view doing, const std::string& path, int error) {
  const auto code = error == ENOENT ? StatusCode::kNotFound : StatusCode::kIo;
  return {code, StrCat("cannot ", doing, " ", path, ": ",
                       std::error_code(error, std::generic_category()).message())};
}

}  // namespace kvcache
