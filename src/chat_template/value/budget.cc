#include "chat_template/value/budget.h"

#include <algorithm>

#include "base/errors.h"
#include "base/seconds_since.h"
#include "base/strings.h"

namespace kvcache::jinja {
namespace {

// Units between two looks at the clock: some milliseconds.
constexpr std::uint64_t kTranche = std::uint64_t{1} << 20;

}  // namespace

Status Budget::Extend(std::uint64_t units) {
  if (units > limits_.memory_bytes && units > limits_.units) return OutOfMemory();
  if (limits_.seconds <= 0.0 || SecondsSince(begin_) > limits_.seconds) {
    left_ = 0;
    return Exhausted();
  }
  const std::uint64_t more = std::max(kTranche, units);
  granted_ += more;
  left_ += more - units;
  return Status::Ok();
}

Budget& MemoryCharge::NoBudget() {
  static Budget none{Limits()};
  return none;
}

Status Budget::Exhausted() const {
  const std::string work = WithThousands(static_cast<std::int64_t>(limits_.units));
  if (limits_.seconds <= 0.0) {
    return Unsupported(StrCat("the template exceeds the limit of ", work,
                              " units of work; a byte of text costs 1, a step ", kStep));
  }
  return Unsupported(StrCat("the template needs more than ", limits_.seconds, " seconds and ", work,
                            " units of work"));
}

Status Budget::OutOfMemory() const {
  return Unsupported(StrCat("the template needs more than ",
                            HumanBytes(static_cast<std::int64_t>(limits_.memory_bytes)),
                            " of memory"));
}

}  // namespace kvcache::jinja
