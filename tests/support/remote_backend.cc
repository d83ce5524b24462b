#include "support/remote_backend.h"

#include <cstdint>
#include <iterator>

#include "kvcache/host_routing.h"

namespace kvcache::testing {
namespace {

// No address with this bit is mapped, so that the host cannot use it.
constexpr std::uintptr_t kRemote = std::uintptr_t{1} << 62;

std::byte* Moved(std::byte* address) {
  return reinterpret_cast<std::byte*>(reinterpret_cast<std::uintptr_t>(address) ^ kRemote);
}

// The bytes from the view's first value to its last one.
std::int64_t ExtentOf(const TensorView& view) {
  std::int64_t extent = BytesOf(view.dtype, view.dims[0]);
  if (view.stride_bytes[0] != InfoOf(view.dtype).block_bytes) {
    extent = (view.dims[0] - 1) * view.stride_bytes[0] + InfoOf(view.dtype).block_bytes;
  }
  for (std::size_t i = 1; i < view.dims.size(); ++i) {
    if (view.dims[i] == 0) return 0;
    extent += (view.dims[i] - 1) * view.stride_bytes[i];
  }
  return view.dims[0] == 0 ? 0 : extent;
}

}  // namespace

class RemoteBackend::RemoteBuffer final : public Buffer {
 public:
  RemoteBuffer(RemoteBackend& backend, std::unique_ptr<Buffer> inner)
      : backend_(backend), inner_(std::move(inner)) {
    backend_.buffers_[data()] = size_bytes();
  }
  ~RemoteBuffer() override { backend_.buffers_.erase(data()); }
  std::byte* data() override { return Moved(inner_->data()); }
  std::size_t size_bytes() const override { return inner_->size_bytes(); }

 private:
  RemoteBackend& backend_;
  std::unique_ptr<Buffer> inner_;
};

Result<std::unique_ptr<Buffer>> RemoteBackend::Allocate(std::size_t size_bytes) {
  auto inner = inner_->Allocate(size_bytes);
  if (!inner.ok()) return std::move(inner).TakeStatus();
  return std::unique_ptr<Buffer>(std::make_unique<RemoteBuffer>(*this, *std::move(inner)));
}

std::byte* RemoteBackend::Own(std::byte* address, std::int64_t bytes) {
  if (address == nullptr || bytes == 0) return nullptr;
  const auto after = buffers_.upper_bound(address);
  if (after != buffers_.begin()) {
    const auto& [begin, size] = *std::prev(after);
    if (address + bytes <= begin + size) return Moved(address);
  }
  throw ForeignAddress{"a kernel was given " + std::to_string(bytes) +
                       " bytes that are in no buffer of its backend"};
}

TensorView RemoteBackend::Own(const TensorView& view) {
  TensorView own = view;
  own.data = Own(view.data, ExtentOf(view));
  return own;
}

LayerKv RemoteBackend::Own(const LayerKv& layer) {
  LayerKv own = layer;
  if (layer.on_host) return own;
  own.k = Own(layer.k, layer.KBytes());
  own.v = Own(layer.v, layer.VBytes());
  return own;
}

StateSegments RemoteBackend::Own(const StateSegments& states, std::vector<StateSegment>& segments) {
  const std::int64_t bytes = states.values * static_cast<std::int64_t>(sizeof(float));
  for (StateSegment segment : states.segments) {
    segment.before = Own(const_cast<std::byte*>(segment.before), bytes);
    segment.after = Own(segment.after, bytes);
    segments.push_back(segment);
  }
  StateSegments own = states;
  own.segments = segments;
  return own;
}

Status RemoteBackend::LinearGroups(std::span<const LinearGroup> groups) {
  std::vector<std::vector<LinearOutput>> outputs;
  std::vector<LinearGroup> own;
  return Call([&] {
    for (const LinearGroup& group : groups) {
      auto& to = outputs.emplace_back(group.outputs.begin(), group.outputs.end());
      for (LinearOutput& output : to) output.y = Own(output.y);
      own.push_back({Own(group.x), to});
    }
    return inner_->LinearGroups(own);
  });
}

// A host's routing over the remote backend, which refuses other memory.
class RemoteBackend::Routing final : public ExpertRouting {
 public:
  explicit Routing(RemoteBackend& backend) : backend_(backend) { host_.Use(backend); }
  Status Reserve(const RoutingSizes& sizes) { return host_.Reserve(sizes); }

  Status Route(const TensorView& logits, const RouterOptions& options,
               std::span<const float> factors) override {
    ++backend_.routed_;
    return host_.Route(logits, options, factors);
  }
  Status GatherTokens(const TensorView& x, const TensorView& columns) override {
    return host_.GatherTokens(x, columns);
  }
  Status GatherExperts(const TensorView& table, const TensorView& columns) override {
    return host_.GatherExperts(table, columns);
  }
  Status WeighInputs(const TensorView& columns) override { return host_.WeighInputs(columns); }
  Status ScaleByExpert(const TensorView& columns, std::span<const float> factors) override {
    return host_.ScaleByExpert(columns, factors);
  }
  Status Linear(const TensorView& x, std::span<const ExpertOutput> outputs) override {
    return host_.Linear(x, outputs);
  }
  Status Combine(const TensorView& columns, const TensorView& out) override {
    return host_.Combine(columns, out);
  }
  Result<ExpertSlots> Slots() override { return host_.Slots(); }

 private:
  RemoteBackend& backend_;
  HostRouting host_;
};

Result<std::unique_ptr<ExpertRouting>> RemoteBackend::MakeRouting(const RoutingSizes& sizes) {
  if (routing_ == RemoteRouting::kByHost) return std::unique_ptr<ExpertRouting>();
  auto routing = std::make_unique<Routing>(*this);
  const Status reserved = routing->Reserve(sizes);
  if (!reserved.ok()) return reserved;
  return std::unique_ptr<ExpertRouting>(std::move(routing));
}

Status RemoteBackend::ShortConv(const TensorView& x, const ConvTaps& taps,
                                const StateSegments& inputs, const TensorView& y) {
  std::vector<StateSegment> segments;
  return Call([&] {
    ConvTaps own{Own(taps.taps), {}};
    if (taps.bias.has_value()) own.bias = Own(*taps.bias);
    return inner_->ShortConv(Own(x), own, Own(inputs, segments), Own(y));
  });
}

Status RemoteBackend::StateScan(const ScanInputs& inputs, const ScanOptions& options,
                                const StateSegments& states, const TensorView& out) {
  std::vector<StateSegment> segments;
  return Call([&] {
    const ScanInputs own{Own(inputs.keys), Own(inputs.queries), Own(inputs.values),
                         Own(inputs.decays), Own(inputs.steps)};
    return inner_->StateScan(own, options, Own(states, segments), Own(out));
  });
}

}  // namespace kvcache::testing
