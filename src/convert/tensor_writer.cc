#include "convert/tensor_writer.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include "base/arithmetic/doubles.h"
#include "base/errors.h"
#include "base/strings.h"
#include "tensor/quantize.h"

namespace kvcache {
namespace {

constexpr std::int64_t kChunkValues = std::int64_t{1} << 18;

// Consecutive rows of one tensor: the work of a thread at a time.
struct Chunk {
  std::size_t tensor;
  std::int64_t first;
  std::int64_t count;
};

// The memory of one thread.
struct Buffers {
  std::vector<std::byte> source, result;
  std::vector<float> values;
};

std::size_t RowBytes(GgmlType type, std::int64_t values) {
  const GgmlTypeInfo& info = *FindGgmlType(type);
  return static_cast<std::size_t>(values / info.block_size * info.block_bytes);
}

void Change(ValueChange change, std::span<float> values) {
  if (change == ValueChange::kAddOne) {
    for (float& value : values) value += 1.0f;
  } else if (change == ValueChange::kNegativeExp) {
    for (float& value : values) value = static_cast<float>(-arithmetic::Exp(double{value}));
  }
}

// Copies rows [first, first + count) of the file, in their source type.
void GatherRows(const TensorPlan& plan, const Chunk& chunk, std::vector<std::byte>* out) {
  const std::size_t bytes = RowBytes(plan.source_type, plan.dims[0]);
  out->resize(bytes * static_cast<std::size_t>(chunk.count));
  const std::size_t rows_of_part = plan.parts[0].size() / bytes;
  for (std::int64_t i = 0; i < chunk.count; ++i) {
    const std::int64_t row = chunk.first + i;
    const auto from = static_cast<std::size_t>(plan.source_row ? plan.source_row(row) : row);
    const std::span part = plan.parts[from / rows_of_part];
    std::memcpy(out->data() + static_cast<std::size_t>(i) * bytes,
                part.data() + from % rows_of_part * bytes, bytes);
  }
}

class Worker {
 public:
  Worker(const std::vector<TensorPlan>& plans, GgufWriter& writer)
      : plans_(plans), writer_(writer) {
    for (std::size_t i = 0; i < plans.size(); ++i) {
      const std::int64_t step = std::max<std::int64_t>(1, kChunkValues / plans[i].dims[0]);
      for (std::int64_t row = 0; row < plans[i].rows(); row += step) {
        chunks_.push_back({i, row, std::min(step, plans[i].rows() - row)});
      }
    }
  }

  Status Run(int threads) {
    {
      std::vector<std::jthread> others;
      for (int i = 1; i < threads; ++i) others.emplace_back([this] { Work(); });
      Work();
    }
    return std::move(status_);
  }

 private:
  void Work() {
    Buffers buffers;
    for (std::size_t i; (i = next_.fetch_add(1)) < chunks_.size();) {
      const TensorPlan& plan = plans_[chunks_[i].tensor];
      Status status = Write(plan, chunks_[i], buffers);
      if (status.ok()) continue;
      next_ = chunks_.size();  // stops the other threads as well
      const std::lock_guard lock(mutex_);
      if (status_.ok()) status_ = std::move(status).WithContext(plan.name);
    }
  }

  Status Write(const TensorPlan& plan, const Chunk& chunk, Buffers& buffers) {
    const std::size_t row_bytes = RowBytes(plan.type, plan.dims[0]);
    const std::uint64_t offset = static_cast<std::uint64_t>(chunk.first) * row_bytes;
    const auto count = static_cast<std::size_t>(chunk.count * plan.dims[0]);
    const bool same = plan.type == plan.source_type && plan.change == ValueChange::kNone;
    if (plan.values.empty()) GatherRows(plan, chunk, &buffers.source);
    if (plan.values.empty() && same) {
      KVCACHE_RETURN_IF_ERROR(writer_.Write(chunk.tensor, offset, buffers.source));
      return Release(plan, chunk);
    }
    buffers.values.resize(count);
    if (!plan.values.empty()) {
      const auto first = static_cast<std::size_t>(chunk.first * plan.dims[0]);
      std::copy_n(plan.values.begin() + static_cast<std::ptrdiff_t>(first), count,
                  buffers.values.begin());
    } else {
      const DType from = *FindGgmlType(plan.source_type)->dtype;
      KVCACHE_RETURN_IF_ERROR(Dequantize(from, buffers.source, buffers.values));
    }
    Change(plan.change, buffers.values);
    buffers.result.resize(row_bytes * static_cast<std::size_t>(chunk.count));
    const DType to = *FindGgmlType(plan.type)->dtype;
    KVCACHE_RETURN_IF_ERROR(Quantize(to, buffers.values, buffers.result));
    KVCACHE_RETURN_IF_ERROR(writer_.Write(chunk.tensor, offset, buffers.result));
    return Release(plan, chunk);
  }

  // Releases the bytes of the chunk where they lie together.
  static Status Release(const TensorPlan& plan, const Chunk& chunk) {
    if (!plan.release || plan.source_row || plan.parts.size() != 1) return Status::Ok();
    const std::size_t bytes = RowBytes(plan.source_type, plan.dims[0]);
    plan.release(plan.parts[0].subspan(static_cast<std::size_t>(chunk.first) * bytes,
                                       static_cast<std::size_t>(chunk.count) * bytes));
    return Status::Ok();
  }

  const std::vector<TensorPlan>& plans_;
  GgufWriter& writer_;
  std::vector<Chunk> chunks_;
  std::atomic<std::size_t> next_{0};
  std::mutex mutex_;
  Status status_;  // the first error, if any
};

}  // namespace

std::int64_t TensorPlan::elements() const {
  std::int64_t product = 1;
  for (const std::int64_t dim : dims) product *= dim;
  return product;
}

Status WriteTensors(GgufHeader header, const std::vector<TensorPlan>& plans,
                    const std::string& path, int threads) {
  for (const TensorPlan& plan : plans) header.AddTensor(plan.name, plan.type, plan.dims);
  KVCACHE_ASSIGN_OR_RETURN(const auto writer, GgufWriter::Create(path, std::move(header)));
  const int cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  KVCACHE_RETURN_IF_ERROR(Worker(plans, *writer).Run(threads > 0 ? threads : cores));
  return writer->Finish();
}

}  // namespace kvcache
