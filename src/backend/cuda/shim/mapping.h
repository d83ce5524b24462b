// A range of addresses whose memory is there, and zero, once it is touched.
#pragma once

#include <cstddef>

namespace kvcache::cuda::shim {

class Mapping {
 public:
  explicit Mapping(std::size_t bytes);
  ~Mapping();
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  std::byte* data() const { return data_; }
  std::size_t size() const { return size_; }
  // Gives the memory of whole pages in the range back: they are zero again.
  void Drop(std::size_t offset, std::size_t bytes);

 private:
  std::byte* data_;
  std::size_t size_;
};

}  // namespace kvcache::cuda::shim
