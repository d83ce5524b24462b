// A weight of two backends' layers, and the backend that has it (split_backend.h).
//
// Thread safety: a value that nobody changes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "kvcache/backend.h"

namespace kvcache {

class SplitWeight final : public LinearWeight {
 public:
  SplitWeight(std::unique_ptr<LinearWeight> inner, int side)
      : inner_(std::move(inner)), side_(side) {}
  std::int64_t inputs() const override { return inner_->inputs(); }
  std::int64_t outputs() const override { return inner_->outputs(); }
  std::int64_t matrices() const override { return inner_->matrices(); }
  DType dtype() const override { return inner_->dtype(); }
  std::size_t owned_bytes() const override { return inner_->owned_bytes(); }
  const LinearWeight* inner() const { return inner_.get(); }
  int side() const { return side_; }

 private:
  std::unique_ptr<LinearWeight> inner_;
  int side_;
};

}  // namespace kvcache
