#include "engine/drafts/prefix_drafter.h"

#include <algorithm>
#include <array>
#include <limits>
#include <new>
#include <span>
#include <vector>

#include "engine/prefixes/token_keys.h"
#include "speculation/lookup_drafter.h"

namespace kvcache {
namespace {

class PrefixDrafter final : public Drafter {
 public:
  PrefixDrafter(const PrefixCache& prefixes, std::uint64_t salt, const DraftRates& rates)
      : prefixes_(prefixes), salt_(salt) {
    this->rates() = rates;
  }

  Status Begin(std::span<const std::int32_t> text) override {
    last_.clear();
    for (const std::int32_t token : text.last(std::min(text.size(), kLast))) Push(token);
    return own_.Begin(text);
  }
  Status Add(std::int32_t token) override {
    Push(token);
    return own_.Add(token);
  }
  Status Propose(int max, std::vector<std::int32_t>& drafts) override {
    for (const std::size_t length : LookupDrafter::kLengths) {
      if (own_.ProposeAfter(length, max, drafts)) return Status::Ok();
      // Three tokens say little of other texts.
      if (length == LookupDrafter::kLengths.back()) break;
      KVCACHE_RETURN_IF_ERROR(LookUpPrefixes(length, max, drafts));
      if (!drafts.empty()) break;
    }
    return Status::Ok();
  }

 private:
  static constexpr std::size_t kLast = LookupDrafter::kLengths.front();

  void Push(std::int32_t token) {
    if (last_.size() == kLast) last_.erase(last_.begin());
    last_.push_back(KeyOf(token));
  }

  // A key that is no token, such as that of an image, ends what followed.
  Status LookUpPrefixes(std::size_t length, int max, std::vector<std::int32_t>& drafts) {
    found_.clear();
    KVCACHE_RETURN_IF_ERROR(
        prefixes_.FollowedBy(last_, length, salt_, static_cast<std::size_t>(max), found_));
    for (const PrefixKey key : found_) {
      if (key > static_cast<PrefixKey>(std::numeric_limits<std::int32_t>::max())) break;
      drafts.push_back(static_cast<std::int32_t>(key));
    }
    return Status::Ok();
  }

  const PrefixCache& prefixes_;
  const std::uint64_t salt_;
  LookupDrafter own_;
  std::vector<PrefixKey> last_;
  std::vector<PrefixKey> found_;
};

}  // namespace

std::unique_ptr<Drafter> MakePrefixDrafter(const PrefixCache& prefixes, std::uint64_t salt,
                                           const DraftRates& rates) {
  return std::make_unique<PrefixDrafter>(prefixes, salt, rates);
}

}  // namespace kvcache
