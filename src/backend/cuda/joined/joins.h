// Which launches can be one: compares the arguments of launches and makes those of the joined kernel.
//
// Thread safety: pure functions.
#pragma once

#include <cstddef>
#include <optional>
#include <span>

#include "backend/cuda/device/device.h"
#include "backend/cuda/joined/joined_device.h"
#include "backend/cuda/joined/joined_kernels.h"

namespace kvcache::cuda {

template <class Args>
struct JoinedLaunch {
  const Kernel* kernel;
  Grid grid;
  std::size_t shared_bytes;
  Args args;
};
using JoinedNormLaunch = JoinedLaunch<JoinedNormArgs>;
using JoinedGateLaunch = JoinedLaunch<JoinedGateArgs>;
using JoinedStoreLaunch = JoinedLaunch<JoinedStoreArgs>;

// Whether a launch is worth holding back.
bool BeginsJoin(KernelPart part);
bool IsQuantize(KernelPart part);

// An addition and a norm; an addition or nothing, a norm, and a quantisation with these arguments; a gate and a
// quantisation; two rotations and a store. Nothing if no kernel does the work of all.
std::optional<JoinedNormLaunch> JoinAddAndNorm(const JoinedDevice::Held& add,
                                               const JoinedDevice::Held& norm);
std::optional<JoinedNormLaunch> JoinNorm(std::span<const JoinedDevice::Held> held,
                                         KernelPart quantize, std::span<const std::byte> args);
std::optional<JoinedGateLaunch> JoinGate(std::span<const JoinedDevice::Held> held,
                                         KernelPart quantize, const Grid& grid,
                                         std::span<const std::byte> args);
std::optional<JoinedStoreLaunch> JoinStore(std::span<const JoinedDevice::Held> held,
                                           const Grid& grid, std::span<const std::byte> args,
                                           std::size_t shared_bytes);

}  // namespace kvcache::cuda
