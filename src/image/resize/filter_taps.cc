#include "image/resize/filter_taps.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/arithmetic/angles.h"

namespace kvcache::image {
namespace {

double Bilinear(double x) {
  x = std::abs(x);
  return x < 1.0 ? 1.0 - x : 0.0;
}

double Bicubic(double x) {
  constexpr double a = -0.5;
  x = std::abs(x);
  if (x < 1.0) return ((a + 2.0) * x - (a + 3.0)) * x * x + 1;
  if (x < 2.0) return (((x - 5) * x + 8) * x - 4) * a;
  return 0.0;
}

double Sinc(double x) {
  if (x == 0.0) return 1.0;
  x *= std::numbers::pi;
  return arithmetic::SinCos(x).sine / x;
}

double Lanczos(double x) {
  return -3.0 <= x && x < 3.0 ? Sinc(x) * Sinc(x / 3) : 0.0;
}

struct FilterFunction {
  double (*weight)(double);
  double support;  // the weight is zero beyond it
};

FilterFunction FunctionOf(ResizeFilter filter) {
  switch (filter) {
    case ResizeFilter::kBilinear: return {Bilinear, 1.0};
    case ResizeFilter::kBicubic: return {Bicubic, 2.0};
    case ResizeFilter::kLanczos: return {Lanczos, 3.0};
  }
  return {Bilinear, 1.0};
}

int WholePart(double value) {
  return static_cast<int>(value);
}

std::int32_t Rounded(double weight) {
  return static_cast<std::int32_t>((weight < 0 ? -0.5 : 0.5) + weight * (1 << kWeightBits));
}

}  // namespace

FilterTaps MakeFilterTaps(int from, int to, ResizeFilter filter) {
  const FilterFunction function = FunctionOf(filter);
  const double scale = static_cast<double>(from) / to;
  const double widened = std::max(scale, 1.0);  // the antialiasing
  const double support = function.support * widened;
  const double narrowed = 1.0 / widened;
  FilterTaps taps;
  taps.row = static_cast<int>(std::ceil(support)) * 2 + 1;
  taps.windows.resize(static_cast<std::size_t>(to));
  taps.weights.resize(static_cast<std::size_t>(to) * static_cast<std::size_t>(taps.row));
  std::vector<double> weights(static_cast<std::size_t>(taps.row));
  for (int i = 0; i < to; ++i) {
    const double centre = (i + 0.5) * scale;
    const int first = std::max(0, WholePart(centre - support + 0.5));
    const int end = std::min(from, WholePart(centre + support + 0.5));
    double sum = 0.0;
    for (int x = first; x < end; ++x) {
      const double weight = function.weight((x - centre + 0.5) * narrowed);
      weights[static_cast<std::size_t>(x - first)] = weight;
      sum += weight;
    }
    std::int32_t* out = taps.weights.data() + std::size_t(i) * std::size_t(taps.row);
    for (int x = first; x < end; ++x) {
      const double weight = weights[static_cast<std::size_t>(x - first)];
      *out++ = Rounded(sum != 0.0 ? weight / sum : weight);
    }
    taps.windows[static_cast<std::size_t>(i)] = {first, end - first};
  }
  return taps;
}

}  // namespace kvcache::image
