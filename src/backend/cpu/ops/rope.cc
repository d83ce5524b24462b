#include "backend/cpu/ops/rope.h"

#include <algorithm>
#include <string>

#include "backend/cpu/common/angles.h"
#include "backend/cpu/ops/elementwise_kernels.h"

namespace kvcache::cpu {
namespace {

// Values per task.
constexpr std::int64_t kTaskValues = 8'192;
constexpr std::int64_t kTaskAngles = 256;

std::int64_t TokensPerTask(std::int64_t values_per_token, std::int64_t task_values) {
  return std::max<std::int64_t>(1, task_values / std::max<std::int64_t>(1, values_per_token));
}

// Runs body(token) for all tokens, several per task.
template <typename Body>
void ForTokens(ThreadPool& pool, std::int64_t tokens, std::int64_t per_task, const Body& body) {
  pool.ParallelFor((tokens + per_task - 1) / per_task, [&](std::int64_t task, int) {
    const std::int64_t end = std::min(tokens, (task + 1) * per_task);
    for (std::int64_t token = task * per_task; token < end; ++token) body(token);
  });
}

bool Holds(const RopeTables::Table& table, std::span<const Position> positions,
           const RopeParams& rope) {
  return table.magnitude == rope.magnitude && std::ranges::equal(table.positions, positions) &&
         std::ranges::equal(table.inv_freq, rope.inv_freq);
}

}  // namespace

Status CheckRope(const TensorView& x, std::span<const Position> positions, const RopeParams& rope) {
  const auto invalid = [](const std::string& message) {
    return Status(StatusCode::kInvalidArgument, "rope: " + message);
  };
  if (x.dtype != DType::kF32 || x.dims[3] != 1 || x.stride_bytes[0] != 4) {
    return invalid("x must be f32 [head_dim, heads, batch] with adjacent values");
  }
  if (static_cast<std::int64_t>(positions.size()) != x.dims[2]) {
    return invalid("positions has " + std::to_string(positions.size()) +
                   " entries; must have one for each of " + std::to_string(x.dims[2]) + " tokens");
  }
  if (rope.dims < 0 || rope.dims % 2 != 0 || rope.first < 0 ||
      std::int64_t{rope.first} + rope.dims > x.dims[0]) {
    return invalid("dims is " + std::to_string(rope.dims) + " and first is " +
                   std::to_string(rope.first) + "; dims must be even, and the range within the " +
                   std::to_string(x.dims[0]) + " values of a head");
  }
  if (static_cast<std::int64_t>(rope.inv_freq.size()) != rope.dims / 2) {
    return invalid("inv_freq has " + std::to_string(rope.inv_freq.size()) +
                   " values; must have dims / 2, which is " + std::to_string(rope.dims / 2));
  }
  return Status::Ok();
}

const RopeTables::Table& RopeTables::Find(ThreadPool& pool, std::span<const Position> positions,
                                          const RopeParams& rope) {
  for (std::size_t i = 0; i < tables_.size(); ++i) {
    if (!Holds(tables_[i], positions, rope)) continue;
    last_used_ = i;
    return tables_[i];
  }
  last_used_ = 1 - last_used_;
  Table& table = tables_[last_used_];
  table.positions.assign(positions.begin(), positions.end());
  table.inv_freq.assign(rope.inv_freq.begin(), rope.inv_freq.end());
  table.magnitude = rope.magnitude;
  Fill(pool, table);
  return table;
}

void RopeTables::Fill(ThreadPool& pool, Table& table) {
  const std::size_t pairs = table.inv_freq.size();
  table.cosines.resize(table.positions.size() * pairs);
  table.sines.resize(table.positions.size() * pairs);
  const auto tokens = static_cast<std::int64_t>(table.positions.size());
  const auto values = static_cast<std::int64_t>(pairs);
  ForTokens(pool, tokens, TokensPerTask(values, kTaskAngles), [&](std::int64_t token) {
    const std::size_t at = static_cast<std::size_t>(token) * pairs;
    RotationFactors(table.positions[static_cast<std::size_t>(token)], table.inv_freq,
                    table.magnitude, table.cosines.data() + at, table.sines.data() + at);
  });
}

Status Rope(ThreadPool& pool, RopeTables& tables, const TensorView& x,
            std::span<const Position> positions, const RopeParams& rope) {
  KVCACHE_RETURN_IF_ERROR(CheckRope(x, positions, rope));
  const std::int64_t pairs = rope.dims / 2;
  if (pairs == 0 || positions.empty()) return Status::Ok();
  const RopeTables::Table& table = tables.Find(pool, positions, rope);
  const std::int64_t per_task = TokensPerTask(x.dims[0] * x.dims[1], kTaskValues);
  ForTokens(pool, x.dims[2], per_task, [&](std::int64_t token) {
    for (std::int64_t head = 0; head < x.dims[1]; ++head) {
      std::byte* const values = x.data + token * x.stride_bytes[2] + head * x.stride_bytes[1];
      kernel::RotateHead(reinterpret_cast<float*>(values) + rope.first,
                         table.cosines.data() + token * pairs, table.sines.data() + token * pairs,
                         pairs, rope.pairing);
    }
  });
  return Status::Ok();
}

}  // namespace kvcache::cpu
