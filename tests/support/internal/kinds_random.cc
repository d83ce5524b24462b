#include "support/internal/kinds_random.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "support/internal/encoder_reference.h"
#include "support/internal/inspected_causal.h"
#include "support/internal/recurrent_reference.h"
#include "support/script_random.h"
#include "support/wrapper_reference.h"

namespace kvcache::testing {
namespace {

// The inner caches of a kind.
struct ReferenceParts {
  std::vector<CausalReferenceOptions> causal{};
  std::optional<RecurrentReferenceOptions> recurrent{};
  int encoder_tokens = 0;  // 0: no encoder
};

CausalReferenceOptions RandomCausal(TestKind kind, const DriverSetup& setup, std::mt19937& random) {
  CausalReferenceOptions causal{.can_shift = !Percent(random, 10)};
  const bool chunked = kind == TestKind::kChunk;
  if (chunked) causal.chunk = Between(random, 1, 6);
  if (kind == TestKind::kFull || (chunked && Percent(random, 60))) return causal;
  causal.window = Between(random, 1, std::max(2, setup.options.capacity - 2));
  if (kind != TestKind::kWindow && Percent(random, kind == TestKind::kRetained ? 100 : 30)) {
    causal.retained_tokens = causal.window + Between(random, 0, 4);
  }
  return causal;
}

ReferenceParts RandomParts(TestKind kind, const DriverSetup& setup, std::mt19937& random) {
  ReferenceParts parts;
  if (kind == TestKind::kEncoder || kind == TestKind::kDecoderAndEncoder) {
    parts.encoder_tokens = Between(random, 1, 5);
  }
  if (kind == TestKind::kRecurrent || kind == TestKind::kRecurrentAndSliding) {
    parts.recurrent = RecurrentReferenceOptions{};
    RecurrentReferenceOptions& recurrent = *parts.recurrent;
    if (kind == TestKind::kRecurrent && Percent(random, 20)) {
      recurrent.attention = RandomCausal(TestKind::kRetained, setup, random);
    }
    if (Percent(random, 25)) recurrent.conv_dim = recurrent.conv_channels = 0;
    if (recurrent.conv_dim > 0 && Percent(random, 25)) recurrent.state_size = 0;
    if (Percent(random, 5)) recurrent.can_replay = false;
    if (Percent(random, 20)) recurrent.max_states = Between(random, 1, setup.options.max_sequences);
    recurrent.snapshot_states = Between(random, 0, 3);
    recurrent.checkpoints = {.count = Between(random, 0, 4),
                             .spacing = Between(random, 1, 4),
                             .minimum = Between(random, 0, 3)};
  }
  if (kind == TestKind::kSlidingAndFull || kind == TestKind::kRecurrentAndSliding) {
    parts.causal.push_back(RandomCausal(TestKind::kRetained, setup, random));
  }
  if (kind == TestKind::kSlidingAndFull || kind == TestKind::kDecoderAndEncoder) {
    parts.causal.push_back(RandomCausal(TestKind::kFull, setup, random));
  }
  if (kind < TestKind::kEncoder) parts.causal.push_back(RandomCausal(kind, setup, random));
  return parts;
}

std::unique_ptr<CacheReference> MakeReference(const ReferenceParts& parts,
                                              const ReferenceSetup& setup) {
  std::vector<std::unique_ptr<CacheReference>> references;
  for (const CausalReferenceOptions& causal : parts.causal) {
    references.push_back(std::make_unique<InspectedCausal>(setup, causal));
  }
  if (parts.recurrent.has_value()) {
    references.push_back(std::make_unique<RecurrentReference>(setup, *parts.recurrent));
  }
  if (parts.encoder_tokens > 0) {
    references.push_back(std::make_unique<EncoderReference>(setup, parts.encoder_tokens));
  }
  if (references.size() == 1) return std::move(references.front());
  return std::make_unique<WrapperReference>(std::move(references));
}

}  // namespace

std::string NameOf(TestKind kind) {
  switch (kind) {
    case TestKind::kFull: return "Full";
    case TestKind::kWindow: return "Window";
    case TestKind::kRetained: return "WindowWithRetained";
    case TestKind::kChunk: return "Chunk";
    case TestKind::kEncoder: return "Encoder";
    case TestKind::kRecurrent: return "Recurrent";
    case TestKind::kSlidingAndFull: return "SlidingAndFull";
    case TestKind::kDecoderAndEncoder: return "DecoderAndEncoder";
    case TestKind::kRecurrentAndSliding: return "RecurrentAndSliding";
  }
  return "?";
}

DriverSetup RandomSetup(TestKind kind, std::mt19937& random) {
  DriverSetup setup = RandomSizes(random);
  const ReferenceParts parts = RandomParts(kind, setup, random);
  for (const auto& causal : parts.causal) setup.kind += ToText(causal) + " ";
  if (parts.recurrent.has_value()) setup.kind += ToText(*parts.recurrent) + " ";
  if (parts.encoder_tokens > 0) {
    setup.kind += "encoder of " + std::to_string(parts.encoder_tokens) + " tokens";
  }
  // Without snapshots, scripts have more of the calls that go back to states.
  setup.snapshots = !parts.recurrent.has_value() || Percent(random, 65);
  setup.make_reference = [parts](const ReferenceSetup& reference) {
    return MakeReference(parts, reference);
  };
  return setup;
}

}  // namespace kvcache::testing
