#include "kvcache/draft_rates.h"

#include <algorithm>
#include <cstddef>

namespace kvcache {
namespace {

constexpr double kNewest = 0.1;  // weight of the last measurement
constexpr double kFirstRate = 0.7;
constexpr int kProbe = 2;  // drafts after a pause

}  // namespace

double DraftRates::Of(int place) const {
  for (auto at = static_cast<std::size_t>(place) + 1; at-- > 0;) {
    if (accepted_[at] > 0.0) return accepted_[at];
  }
  return kFirstRate;
}

void DraftRates::Count(int drafted, int accepted) {
  for (int place = 0; place < std::min(drafted, kMost); ++place) {
    if (place > accepted) break;  // it was not judged
    double& rate = accepted_[static_cast<std::size_t>(place)];
    if (rate == 0.0) rate = kFirstRate;
    rate += kNewest * ((place < accepted ? 1.0 : 0.0) - rate);
  }
  if (drafted > 0 && accepted == drafted) pause_ = kFirstPause;
}

void DraftRates::CountProposal(int drafted, double seconds) {
  if (drafted < 1) return;
  seconds_ += (seconds_ == 0.0 ? 1.0 : kNewest) * (seconds / drafted - seconds_);
}

int DraftRates::TryAgain() {
  if (++rounds_ < pause_) return 0;
  rounds_ = 0;
  pause_ = std::min(2 * pause_, kLongestPause);
  return kProbe;
}

}  // namespace kvcache
