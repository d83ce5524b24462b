#include "backend/split/split_sides.h"

#include <span>

#include "base/errors.h"

namespace kvcache {

int SplitSides::SideOf(const std::byte* address) const {
  const int owner = memory_.OwnerOf(address);
  return owner == SplitMemory::kBoth ? side_ : owner;
}

Status SplitSides::Bring(const TensorView& view, int from, int to) {
  const auto bytes = static_cast<std::size_t>(BytesOf(view.dtype, view.elements()));
  if (view.data == nullptr || bytes == 0) return Status::Ok();
  if (staging_.size() < bytes) {
    KVCACHE_RETURN_IF_ERROR(Guarded("no memory to bring activations to another machine",
                                    [&] { staging_.resize(bytes); }));
  }
  const std::span<std::byte> host = std::span(staging_).first(bytes);
  TensorView source = view;
  TensorView target = view;
  KVCACHE_RETURN_IF_ERROR(memory_.Translate(source, from));
  KVCACHE_RETURN_IF_ERROR(memory_.Translate(target, to));
  KVCACHE_RETURN_IF_ERROR(on(from).CopyToHost(source, host));
  return on(to).CopyFromHost(host, target);
}

Status SplitSides::Enter(int layer, const TensorView& live) {
  const int side = SideOfLayer(layer);
  if (side == side_) return Status::Ok();
  KVCACHE_RETURN_IF_ERROR(Bring(live, side_, side));
  side_ = side;
  return Status::Ok();
}

}  // namespace kvcache
