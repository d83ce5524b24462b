// A drafter that knows what a text will be, and is wrong now and then.
#pragma once

#include <cstdint>
#include <random>
#include <utility>
#include <vector>

#include "kvcache/drafter.h"

namespace kvcache::testing {

class ScriptedDrafter final : public Drafter {
 public:
  // `text` is all of the text, the prompt included. A draft is wrong with this probability.
  ScriptedDrafter(std::vector<std::int32_t> text, int vocabulary, double wrong = 0.2,
                  unsigned seed = 3)
      : text_(std::move(text)), vocabulary_(vocabulary), wrong_(wrong), random_(seed) {}

  Status Begin(std::span<const std::int32_t> text) override {
    at_ = text.size();
    return Status::Ok();
  }
  Status Add(std::int32_t /*token*/) override {
    ++at_;
    return Status::Ok();
  }
  Status Propose(int max, std::vector<std::int32_t>& drafts) override {
    for (std::size_t i = at_; i < text_.size() && max > 0; ++i, --max) {
      const bool wrong = static_cast<double>(random_()) < wrong_ * 0x1p32;
      drafts.push_back(wrong ? (text_[i] + 1) % vocabulary_ : text_[i]);
    }
    return Status::Ok();
  }

 private:
  std::vector<std::int32_t> text_;
  std::int32_t vocabulary_;
  double wrong_;
  std::size_t at_ = 0;
  std::mt19937 random_;
};

}  // namespace kvcache::testing
