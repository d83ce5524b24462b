// The JSON numbers of a range, in all ways to write them: 100, 1e2, 100.0.
//
// Each part of a number has at most 100 digits (more if a bound has more), and an exponent 3. Where a unit such as
// 0.25 or 7 divides the numbers, which takes remainders, they have no exponent. Numbers with a unit, whole ones
// too, have no -0. All are finite as doubles, and are in the range as doubles, too. So numbers that must not be whole
// are none that doubles round to whole ones: 1e-400, or 3.00000000000000001. A double with 17 digits, of which the
// first 16 look whole, is left out with them.
//
// Thread safety: as ByteLanguage.
#pragma once

#include <memory>

#include "grammar/byte_language.h"
#include "grammar/number_range.h"

namespace kvcache {

class NumberLanguage final : public ByteLanguage {
 public:
  explicit NumberLanguage(const NumberRange& range) : range_(range.ForDoubles()) {}

  std::unique_ptr<ByteReader> Reader() const override;

 private:
  NumberRange range_;
};

}  // namespace kvcache
