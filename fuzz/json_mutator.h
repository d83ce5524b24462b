// Changes JSON as JSON: a fuzzer that changes its bytes would rarely get past the parser.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <nlohmann/json.hpp>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <vector>

// Of libFuzzer: changes bytes.
extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* bytes, std::size_t size, std::size_t max);

namespace kvcache {

class JsonMutator {
 public:
  // `keys`: names that a new key of an object may have. Must outlive this.
  JsonMutator(std::uint32_t seed, std::span<const std::string_view> keys)
      : random_(seed), keys_(keys) {}

  void Change(nlohmann::json& document) {
    std::vector<nlohmann::json*> places;
    Collect(document, &places);
    nlohmann::json& place = *places[Draw(places.size())];
    const nlohmann::json other = *places[Draw(places.size())];
    // The document itself is replaced seldom: most of the rest of the input would be lost.
    const bool is_document = &place == places.front() && Draw(8) != 0;
    switch (is_document ? 5 : Draw(6)) {
      case 0: place = Value(); return;
      case 1: place = other; return;
      case 2: place = nlohmann::json::array({place, other}); return;
      case 3: return Remove(place);
      case 4: return ChangeScalar(place);
      default: return Add(place, Draw(2) == 0 ? other : Value());
    }
  }

 private:
  static constexpr std::size_t kMaxPlaces = 2000;

  std::size_t Draw(std::size_t count) { return random_() % count; }

  static void Collect(nlohmann::json& value, std::vector<nlohmann::json*>* places) {
    places->push_back(&value);
    if (!value.is_structured() || places->size() > kMaxPlaces) return;
    for (nlohmann::json& inner : value) Collect(inner, places);
  }

  nlohmann::json Value() {
    static const std::vector<nlohmann::json> kValues = {nullptr,
                                                        true,
                                                        false,
                                                        0,
                                                        1,
                                                        -1,
                                                        2,
                                                        7,
                                                        0.5,
                                                        -0.0,
                                                        1e-9,
                                                        1e300,
                                                        -1e300,
                                                        2147483648,
                                                        -2147483649,
                                                        9007199254740993,
                                                        18446744073709551615u,
                                                        "",
                                                        "a",
                                                        "user",
                                                        "assistant",
                                                        "system",
                                                        "tool",
                                                        "text",
                                                        "none",
                                                        "auto",
                                                        "required",
                                                        "object",
                                                        "string",
                                                        "integer",
                                                        "1",
                                                        "-1",
                                                        "\xff",
                                                        "\xf0\x9f\x90\xa2",
                                                        std::string(300, 'x'),
                                                        std::string("a\0b", 3),
                                                        nlohmann::json::array(),
                                                        nlohmann::json::object()};
    return kValues[Draw(kValues.size())];
  }

  void Remove(nlohmann::json& place) {
    if (!place.is_structured() || place.empty()) return void(place = nullptr);
    place.erase(std::next(place.begin(), static_cast<std::ptrdiff_t>(Draw(place.size()))));
  }

  void ChangeScalar(nlohmann::json& place) {
    if (place.is_number_integer()) {
      place = static_cast<std::int64_t>(place.get<std::uint64_t>() + Draw(3) - 1);
    } else if (place.is_number()) {
      place = place.get<double>() * (Draw(2) == 0 ? -1.0 : 0.5);
    } else if (place.is_string()) {
      std::string text = place.get<std::string>();
      text.insert(Draw(text.size() + 1), Draw(2) == 0 ? "\"" : "<tool_call>");
      place = text;
    } else {
      place = Value();
    }
  }

  void Add(nlohmann::json& place, const nlohmann::json& value) {
    if (place.is_array()) return place.push_back(value);
    if (place.is_object()) return void(place[std::string(keys_[Draw(keys_.size())])] = value);
    place = value;
  }

  std::minstd_rand random_;
  std::span<const std::string_view> keys_;
};

// A custom mutator for inputs that are `prefix` bytes and a JSON document. Half of the changes are of bytes.
inline std::size_t MutateJson(std::uint8_t* bytes, std::size_t size, std::size_t max,
                              std::uint32_t seed, std::size_t prefix,
                              std::span<const std::string_view> keys) {
  if (seed % 2 == 0 || size <= prefix) return LLVMFuzzerMutate(bytes, size, max);
  const std::string_view text(reinterpret_cast<const char*>(bytes) + prefix, size - prefix);
  nlohmann::json document = nlohmann::json::parse(text, nullptr, false);
  if (document.is_discarded()) return LLVMFuzzerMutate(bytes, size, max);
  JsonMutator mutator(seed / 2, keys);
  for (std::uint32_t i = 0; i <= seed / 2 % 3; ++i) mutator.Change(document);
  const std::string changed =
      document.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  if (prefix + changed.size() > max) return size;
  std::memcpy(bytes + prefix, changed.data(), changed.size());
  return prefix + changed.size();
}

}  // namespace kvcache
