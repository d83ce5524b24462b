#include "embedding/embedding_keys.h"

#include <array>
#include <string>

#include "base/errors.h"
#include "base/strings.h"
#include "model/model.h"

namespace kvcache {
namespace {

// By the numbers of the key.
constexpr std::array kPoolings = {Pooling::kNone, Pooling::kMean, Pooling::kCls, Pooling::kLast,
                                  Pooling::kRank};

}  // namespace

Result<std::optional<Pooling>> ReadPooling(const GgufFile& file) {
  KVCACHE_ASSIGN_OR_RETURN(const std::string_view architecture,
                           file.GetString("general.architecture"));
  const std::string key = StrCat(architecture, ".pooling_type");
  if (file.Find(key) == nullptr) return std::optional<Pooling>();
  KVCACHE_ASSIGN_OR_RETURN(const std::int64_t value, file.GetInt(key));
  if (value < 0 || value >= std::ssize(kPoolings)) {
    return Unsupported(StrCat(key, " is ", value, ": not supported"));
  }
  return std::optional(kPoolings[static_cast<std::size_t>(value)]);
}

Result<Pooling> ChoosePooling(const GgufFile& file, const std::optional<Pooling>& wanted) {
  KVCACHE_ASSIGN_OR_RETURN(const std::optional<Pooling> stated, ReadPooling(file));
  if (wanted.has_value()) return *wanted;
  if (stated.value_or(Pooling::kNone) != Pooling::kNone) return *stated;
  return IsTextEncoder(file) ? Pooling::kMean : Pooling::kLast;
}

}  // namespace kvcache
