#include "server/request_sampling.h"

#include <cstdint>
#include <limits>
#include <random>

namespace kvcache::server {

SamplingParams ReadSampling(Fields& fields, double least_penalty, double hottest) {
  const auto number = [&](const char* name, double fallback, double least, double most) {
    return static_cast<float>(fields.Number(name, fallback, least, most));
  };
  SamplingParams params;
  params.temperature = number("temperature", 1.0, 0.0, hottest);
  params.top_p = number("top_p", 1.0, 0.0, 1.0);
  // No token is left at 0; the most likely one remains for the smallest positive value.
  if (params.top_p <= 0.0f) params.top_p = std::numeric_limits<float>::min();
  params.top_k = static_cast<std::int32_t>(
      fields.Integer("top_k", 0, 0, std::numeric_limits<std::int32_t>::max()));
  params.min_p = number("min_p", 0.0, 0.0, 1.0);
  params.presence_penalty = number("presence_penalty", 0.0, least_penalty, 2.0);
  params.frequency_penalty = number("frequency_penalty", 0.0, least_penalty, 2.0);
  params.repeat_penalty = number("repeat_penalty", 1.0, 0.01, 100.0);
  params.penalty_window = 0;
  params.seed =
      static_cast<std::uint64_t>(fields.Integer("seed", 0, std::numeric_limits<std::int64_t>::min(),
                                                std::numeric_limits<std::int64_t>::max()));
  if (!fields.Has("seed")) {
    std::random_device device;
    params.seed = std::uint64_t{device()} << 32 | device();
  }
  return params;
}

}  // namespace kvcache::server
