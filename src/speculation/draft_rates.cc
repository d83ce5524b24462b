#include "kvcache/draft_rates.h"

#include <algorithm>
#include <cstddef>

#include "speculation/usual_time.h"

namespace kvcache {
namespace {

constexpr double kNewestRate = 0.1;  // weight of the last measurement
constexpr double kFirstRate = 0.7;
constexpr int kManyRounds = 1000;
constexpr int kProbe = 2;  // drafts after a pause

}  // namespace

double DraftRates::Of(int place) const {
  for (auto at = static_cast<std::size_t>(place) + 1; at-- > 0;) {
    if (rates_[at].rounds > 0) return rates_[at].accepted;
  }
  return kFirstRate;
}

void DraftRates::Count(int drafted, int accepted) {
  for (int place = 0; place < std::min(drafted, kMax); ++place) {
    if (place > accepted) break;  // it was not judged
    Rate& rate = rates_[static_cast<std::size_t>(place)];
    if (rate.rounds == 0) rate.accepted = kFirstRate;
    // What is assumed weighs as much as one round, so that bad drafts end soon.
    const double weight = std::max(kNewestRate, 1.0 / (rate.rounds + 2));
    rate.accepted += weight * ((place < accepted ? 1.0 : 0.0) - rate.accepted);
    rate.rounds = std::min(rate.rounds + 1, kManyRounds);
  }
  if (drafted < 1) return;
  const bool all = accepted == drafted;
  if (all) pause_ = kFirstPause;
  if (all && is_deeper_) deeper_pause_ = kFirstDeeperPause;
  is_deeper_ = false;
}

void DraftRates::CountProposal(int drafted, double seconds) {
  if (drafted < 1) return;
  seconds_ = UsualTime(seconds_, seconds / drafted);
}

bool DraftRates::TryDeeper() {
  if (++deeper_rounds_ < deeper_pause_) return false;
  deeper_rounds_ = 0;
  deeper_pause_ = std::min(2 * deeper_pause_, kLongestDeeperPause);
  return is_deeper_ = true;
}

int DraftRates::TryAgain() {
  if (++rounds_ < pause_) return 0;
  rounds_ = 0;
  pause_ = std::min(2 * pause_, kLongestPause);
  return kProbe;
}

}  // namespace kvcache
