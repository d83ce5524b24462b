#include "grammar/number_language.h"

#include <algorithm>
#include <deque>
#include <limits>
#include <map>
#include <unordered_map>
#include <utility>
#include <vector>

namespace kvcache {
namespace {

constexpr std::int64_t kMaxDigits = 100;
constexpr std::int64_t kExponentDigits = 3;
constexpr std::int32_t kDigitsOfDouble = 16;  // numbers that differ in these are different doubles
constexpr std::int64_t kMaxExponent = 999;
constexpr std::int64_t kFar = std::numeric_limits<std::int32_t>::max();
constexpr std::size_t kMaxStates = 200'000;
constexpr std::size_t kWorkOfState = 15;  // as places of a pattern
constexpr std::size_t kWorkOfStep = 3;

enum class Phase : std::uint8_t {
  kStart,     // before the number
  kMinus,     // behind the sign
  kZero,      // behind a first 0
  kWhole,     // among the digits before the point
  kPoint,     // behind the point
  kFraction,  // among the digits behind it
  kE,         // behind e
  kSign,      // behind the sign of the exponent
  kExponent,  // among its digits
};

// The digits so far beside those of a bound.
enum class Order : std::uint8_t { kSame, kLess, kGreater };

// What is known of a number that is read up to here. Fields that do not matter stay as they are.
struct Reading {
  Phase phase = Phase::kStart;
  bool negative = false;
  bool is_zero = true;         // so far
  Order min = Order::kSame;    // beside the smaller bound of magnitudes
  Order max = Order::kSame;    // beside the larger one
  std::int32_t matched = 0;    // digits that were compared, as far as one is kSame
  std::int32_t digits = 0;     // of the part that is read
  std::int32_t position = 0;   // the number is 0.D × 10^position
  std::int32_t zeros = 0;      // and D' × 10^zeros, where D' ends with another digit
  std::int32_t remainder = 0;  // of D' by the unit
  std::int32_t known = 0;      // digits from the first other than 0 on, up to kDigitsOfDouble
  std::int32_t run = 0;        // how many of them are 0, or 9, at their end
  bool nines = false;          // these are 9
  std::int32_t first = 0;      // exponents that are allowed, and the exponent so far
  std::int32_t last = 0;
  std::int32_t exponent = 0;
  auto operator<=>(const Reading&) const = default;
};

// Bounds of magnitudes, for one sign.
struct Side {
  bool possible = true;  // for numbers other than zero
  std::optional<NumberBound> min{};
  std::optional<NumberBound> max{};
};

struct Interval {
  std::int64_t first = -kMaxExponent;
  std::int64_t last = kMaxExponent;
  bool Has(std::int64_t value) const { return first <= value && value <= last; }
  bool empty() const { return first > last; }
};

class NumberReader final : public ByteReader {
 public:
  explicit NumberReader(const NumberRange& range)
      : unit_(range.fractions_only ? DecimalUnit{} : range.unit),
        fractions_only_(range.fractions_only),
        digits_only_(range.digits_only) {
    sides_[0] = {.min = range.min, .max = range.max};
    sides_[1] = {.min = range.max, .max = range.min};
    zero_ = !fractions_only_ && (!range.min || Permits(*range.min, -1)) &&
            (!range.max || Permits(*range.max, 1));
    for (Side& side : sides_) {
      Prepare(side, &side == &sides_[1]);
      if (fractions_only_) AtLeast(side, DecimalOf(std::numeric_limits<double>::denorm_min()));
    }
  }

  State start() override { return Live(Reading{}); }
  bool Accepts(State state) override { return MayEnd(states_[static_cast<std::size_t>(state)]); }
  bool full() const override { return full_; }
  std::size_t work() const override { return work_; }
  State Next(State state, unsigned char byte) override {
    const auto next = Step(states_[static_cast<std::size_t>(state)], byte);
    return next ? Live(*next) : kDead;
  }

 private:
  enum class Fate : std::uint8_t { kUnknown, kEnds, kNever };

  // Returns whether zero is on the right side of a bound: of a smaller one (side < 0) or a larger one.
  static bool Permits(const NumberBound& bound, int side) {
    const int order = Compare(bound.at, Decimal{});
    return order == 0 ? !bound.exclusive : (order < 0) == (side < 0);
  }

  // Turns bounds of numbers into bounds of magnitudes.
  void Prepare(Side& side, bool negative) {
    for (auto* const bound : {&side.min, &side.max}) {
      if (*bound && !(*bound)->at.is_zero()) (*bound)->at.negative ^= negative;
    }
    if (side.min && (side.min->at.negative || side.min->at.is_zero())) side.min.reset();
    side.possible = !side.max || (!side.max->at.negative && !side.max->at.is_zero());
    for (const auto* const bound : {&side.min, &side.max}) {
      if (*bound) max_digits_ = std::max(max_digits_, std::abs((*bound)->at.exponent) + 20);
    }
  }

  static void AtLeast(Side& side, const Decimal& magnitude) {
    NumberRange range{.min = side.min};
    range.AtLeast({magnitude, false});
    side.min = range.min;
  }

  const Side& SideOf(const Reading& read) const { return sides_[read.negative ? 1 : 0]; }
  bool HasRemainders() const { return unit_ && unit_->unit != 1; }
  bool ZeroFits(const Reading& read) const { return zero_ && !(read.negative && unit_); }

  // Returns how the digits so far, if no other follows, stand beside a bound of the same position.
  static int Sign(Order order, const Reading& read, const Decimal& bound) {
    if (order != Order::kSame) return order == Order::kLess ? -1 : 1;
    return static_cast<std::size_t>(read.matched) < bound.digits.size() ? -1 : 0;
  }

  // Returns the exponents that make a number of the digits so far.
  Interval Exponents(const Reading& read) const {
    Interval allowed;
    if (read.is_zero) return ZeroFits(read) ? allowed : Interval{1, 0};
    const Side& side = SideOf(read);
    if (!side.possible) return {1, 0};
    if (side.min) {
      const int sign = Sign(read.min, read, side.min->at);
      const bool fits = sign > 0 || (sign == 0 && !side.min->exclusive);
      const std::int64_t at = side.min->at.exponent - read.position;
      allowed.first = std::max(allowed.first, at + (fits ? 0 : 1));
    }
    if (side.max) {
      const int sign = Sign(read.max, read, side.max->at);
      const bool fits = sign < 0 || (sign == 0 && !side.max->exclusive);
      const std::int64_t at = side.max->at.exponent - read.position;
      allowed.last = std::min(allowed.last, at - (fits ? 0 : 1));
    }
    if (fractions_only_) {
      allowed.last = std::min<std::int64_t>(allowed.last, -read.zeros - 1);
      if (read.known == kDigitsOfDouble) {
        const std::int64_t max_whole = read.known - read.run - 1;
        allowed.last = std::min(allowed.last, max_whole - read.position);
      }
    } else if (unit_) {
      allowed.first = std::max<std::int64_t>(allowed.first, -read.zeros - unit_->places);
    }
    return allowed;
  }

  bool MayEnd(const Reading& read) const {
    if (read.phase == Phase::kExponent) {
      return Interval{read.first, read.last}.Has(read.exponent);
    }
    const bool is_number =
        read.phase == Phase::kZero || read.phase == Phase::kWhole || read.phase == Phase::kFraction;
    if (!is_number || !Exponents(read).Has(0)) return false;
    if (!HasRemainders() || read.is_zero) return true;
    return Times10(read.remainder, read.zeros + unit_->places) == 0;
  }

  // Returns number × 10^count by the unit's remainders.
  std::int64_t Times10(std::int64_t number, std::int64_t count) const {
    number %= unit_->unit;
    for (; count > 0 && number != 0; --count) number = number * 10 % unit_->unit;
    return number;
  }

  std::optional<Reading> Step(const Reading& read, unsigned char byte) const {
    const bool is_digit = byte >= '0' && byte <= '9';
    if (read.phase >= Phase::kE) return ExponentStep(read, byte);
    if (is_digit) return DigitStep(read, byte - '0');
    Reading next = read;
    if (byte == '-' && read.phase == Phase::kStart) {
      next.phase = Phase::kMinus;
      next.negative = true;
      return next;
    }
    if (digits_only_) return {};
    const bool has_whole = read.phase == Phase::kZero || read.phase == Phase::kWhole;
    if (byte == '.' && has_whole) {
      next.phase = Phase::kPoint;
      next.digits = 0;
      return next;
    }
    if ((byte == 'e' || byte == 'E') && (has_whole || read.phase == Phase::kFraction)) {
      if (HasRemainders()) return {};
      const Interval allowed = Exponents(read);
      if (allowed.empty()) return {};
      Reading power{.phase = Phase::kE};
      power.first = static_cast<std::int32_t>(allowed.first);
      power.last = static_cast<std::int32_t>(allowed.last);
      return power;
    }
    return {};
  }

  std::optional<Reading> DigitStep(const Reading& read, int digit) const {
    Reading next = read;
    switch (read.phase) {
      case Phase::kStart:
      case Phase::kMinus: next.phase = digit == 0 ? Phase::kZero : Phase::kWhole; break;
      case Phase::kZero: return {};
      case Phase::kPoint: next.phase = Phase::kFraction; break;
      default: break;
    }
    if (++next.digits > max_digits_) return {};
    const bool is_whole = next.phase != Phase::kFraction;
    const bool is_first = read.is_zero && digit != 0;
    next.is_zero = read.is_zero && digit == 0;
    if (unit_) TakeIntoUnit(next, digit, is_whole);
    const Side& side = SideOf(read);
    if (next.is_zero || (!side.min && !side.max && !unit_)) return next;
    if (is_whole) next.position = next.digits;
    if (!is_whole && is_first) next.position = 1 - next.digits;
    if (fractions_only_) CountRun(next, digit);
    Match(next, side, static_cast<char>('0' + digit));
    return next;
  }

  static void Match(Reading& next, const Side& side, char digit) {
    std::size_t longest = 0;
    const auto match = [&](Order& order, const std::optional<NumberBound>& bound) {
      if (!bound || order != Order::kSame) return;
      const std::string& digits = bound->at.digits;
      const auto at = static_cast<std::size_t>(next.matched);
      const char other = at < digits.size() ? digits[at] : '0';
      if (digit != other) order = digit < other ? Order::kLess : Order::kGreater;
      if (order == Order::kSame) longest = std::max(longest, digits.size());
    };
    match(next.min, side.min);
    match(next.max, side.max);
    next.matched = std::min(next.matched + 1, static_cast<std::int32_t>(longest));
  }

  // Behind the point of a fraction must be another digit than 0 and 9, or a last 9, among the first ones: else doubles
  // round it to a whole number.
  static void CountRun(Reading& next, int digit) {
    if (next.known == kDigitsOfDouble) return;
    ++next.known;
    const bool continues = next.run > 0 && digit == (next.nines ? 9 : 0);
    next.run = continues ? next.run + 1 : digit == 0 || digit == 9 ? 1 : 0;
    next.nines = digit == 9;
  }

  void TakeIntoUnit(Reading& next, int digit, bool is_whole) const {
    const std::int32_t behind = is_whole ? 0 : next.digits;  // digits behind the point
    if (next.is_zero) {
      next.zeros = -behind;
    } else if (digit != 0) {
      const std::int64_t gap = next.zeros + (is_whole ? 1 : behind);
      next.remainder =
          static_cast<std::int32_t>((Times10(next.remainder, gap) + digit) % unit_->unit);
      next.zeros = -behind;
    } else if (is_whole) {
      ++next.zeros;
    }
  }

  static std::optional<Reading> ExponentStep(const Reading& read, unsigned char byte) {
    Reading next = read;
    if (read.phase == Phase::kE && (byte == '+' || byte == '-')) {
      next.phase = Phase::kSign;
      next.negative = byte == '-';
    } else if (byte >= '0' && byte <= '9' && read.digits < kExponentDigits) {
      next.phase = Phase::kExponent;
      next.exponent = read.exponent * 10 + (read.negative ? '0' - byte : byte - '0');
      ++next.digits;
    } else {
      return {};
    }
    return next;
  }

  // Returns whether digits of an exponent can follow that make it one of those that are allowed.
  static bool ExponentCanEnd(const Reading& read) {
    const Interval allowed{read.first, read.last};
    if (read.phase == Phase::kE) return !allowed.empty();
    std::int64_t low = read.negative ? -read.exponent : read.exponent;
    std::int64_t high = low;
    for (std::int64_t left = kExponentDigits - read.digits; left >= 0; --left) {
      const bool has_digits = read.phase == Phase::kExponent || left < kExponentDigits;
      const std::int64_t first = read.negative ? -high : low;
      const std::int64_t last = read.negative ? -low : high;
      if (has_digits && std::max(first, allowed.first) <= std::min(last, allowed.last)) return true;
      low *= 10;
      high = high * 10 + 9;
    }
    return false;
  }

  // Returns false if no digits and exponent behind these make a number of the range.
  bool MayFit(const Reading& read) const {
    if (read.phase <= Phase::kMinus) return true;
    const Side& side = SideOf(read);
    if (read.is_zero) return ZeroFits(read) || side.possible;
    if (!side.possible) return false;
    std::int64_t min = -kFar;
    std::int64_t max = kFar;
    if (unit_ && !fractions_only_) min = std::int64_t{read.position} - read.zeros - unit_->places;
    if (side.min) {
      const std::int64_t at = side.min->at.exponent;
      min = std::max(min, read.min == Order::kLess ? at + 1 : at);
    }
    if (side.max) {
      const std::int64_t at = side.max->at.exponent;
      max = read.max == Order::kGreater ? at - 1 : at;
    }
    if (HasRemainders() || digits_only_) {  // without an exponent
      min = std::max<std::int64_t>(min, read.position);
      if (read.phase != Phase::kWhole) max = std::min<std::int64_t>(max, read.position);
    }
    return min <= max;
  }

  State StateOf(const Reading& read) {
    const auto [known, is_new] = ids_.try_emplace(read, static_cast<State>(states_.size()));
    if (is_new) {
      work_ += kWorkOfState;
      states_.push_back(read);
      fates_.push_back(Fate::kUnknown);
      full_ = full_ || states_.size() > kMaxStates;
    }
    return known->second;
  }

  // Returns the state of a beginning, or kDead if no number continues so.
  State Live(const Reading& read) {
    if (full_) return kDead;
    if (read.phase >= Phase::kE) return ExponentCanEnd(read) ? StateOf(read) : kDead;
    if (!MayFit(read)) return kDead;
    const State state = StateOf(read);
    const auto at = static_cast<std::size_t>(state);
    if (fates_[at] == Fate::kUnknown) Search(state);
    return fates_[at] == Fate::kEnds ? state : kDead;
  }

  bool Ends(State state) const {
    const auto at = static_cast<std::size_t>(state);
    const Reading& read = states_[at];
    if (fates_[at] == Fate::kEnds || MayEnd(read)) return true;
    const auto power = Step(read, 'e');
    return power && ExponentCanEnd(*power);
  }

  // Looks for the shortest end.
  void Search(State from) {
    std::deque<State> open = {from};
    std::unordered_map<State, State> before = {{from, kDead}};
    while (!open.empty() && !full_) {
      const State state = open.front();
      open.pop_front();
      if (Ends(state)) {
        for (State at = state; at != kDead; at = before[at]) {
          fates_[static_cast<std::size_t>(at)] = Fate::kEnds;
        }
        return;
      }
      for (const char byte : std::string_view("-.0123456789")) {
        work_ += kWorkOfStep;
        const auto next =
            Step(states_[static_cast<std::size_t>(state)], static_cast<unsigned char>(byte));
        if (!next || !MayFit(*next)) continue;
        const State behind = StateOf(*next);
        if (fates_[static_cast<std::size_t>(behind)] == Fate::kNever) continue;
        if (before.try_emplace(behind, state).second) open.push_back(behind);
      }
    }
    if (full_) return;
    for (const auto& [state, its] : before) fates_[static_cast<std::size_t>(state)] = Fate::kNever;
  }

  std::optional<DecimalUnit> unit_;
  bool fractions_only_ = false;
  bool digits_only_ = false;
  Side sides_[2];
  bool zero_ = true;  // belongs to the range
  std::int64_t max_digits_ = kMaxDigits;
  std::vector<Reading> states_;
  std::vector<Fate> fates_;
  std::map<Reading, State> ids_;
  std::size_t work_ = 0;
  bool full_ = false;
};

}  // namespace

std::unique_ptr<ByteReader> NumberLanguage::Reader() const {
  return std::make_unique<NumberReader>(range_);
}

}  // namespace kvcache
