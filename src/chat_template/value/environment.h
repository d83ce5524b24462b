// What all functions of a rendering share.
//
// Thread safety: belongs to one rendering.
#pragma once

#include <ctime>
#include <memory>
#include <vector>

#include "chat_template/value/budget.h"
#include "chat_template/value/value.h"

namespace kvcache::jinja {

// The objects of a rendering that may form cycles. Forgets those that are gone, so its size follows
// the number of those that live.
template <typename T>
class CyclicObjects {
 public:
  void Add(const std::shared_ptr<T>& object) {
    if (objects_.size() >= next_sweep_) Sweep();
    objects_.push_back(object);
  }

  // Returns the objects that live.
  std::vector<std::shared_ptr<T>> Living() const {
    std::vector<std::shared_ptr<T>> living;
    for (const std::weak_ptr<T>& object : objects_) {
      if (auto alive = object.lock()) living.push_back(std::move(alive));
    }
    return living;
  }

 private:
  void Sweep() {
    std::erase_if(objects_, [](const std::weak_ptr<T>& object) { return object.expired(); });
    next_sweep_ = 2 * objects_.size() + 64;
  }

  std::vector<std::weak_ptr<T>> objects_;
  std::size_t next_sweep_ = 64;
};

struct Environment {
  Budget budget;
  std::tm now;
  int depth = 0;  // nesting of filters that apply filters
  CyclicObjects<Namespace> namespaces = {};
};

}  // namespace kvcache::jinja
