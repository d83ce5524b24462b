#include "make_model/make_model.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <thread>
#include <vector>

#include "base/strings.h"
#include "gguf/gguf_writer.h"
#include "make_model/architecture.h"
#include "make_model/random_weights.h"
#include "make_model/vocabulary.h"
#include "tensor/quantize.h"

namespace kvcache::make_model {
namespace {

constexpr std::uint64_t kChunk = 1 << 18;  // values; a multiple of every block size

// Consecutive values of one tensor, the work of a thread at a time.
struct Chunk {
  std::size_t tensor;
  std::uint64_t first;
  std::uint64_t count;
};

std::uint64_t Elements(const TensorSpec& spec) {
  std::uint64_t elements = 1;
  for (const std::int64_t dim : spec.dims) elements *= static_cast<std::uint64_t>(dim);
  return elements;
}

class Maker {
 public:
  Maker(const Request& request, const Architecture& architecture)
      : request_(request),
        architecture_(architecture),
        specs_(architecture.tensors(request.shape)) {}

  Status Make(const std::string& path) {
    KVCACHE_ASSIGN_OR_RETURN(writer_, GgufWriter::Create(path, Header()));
    Cut();
    const unsigned cores = std::max(1u, std::thread::hardware_concurrency());
    const auto threads = request_.threads > 0 ? static_cast<unsigned>(request_.threads) : cores;
    {
      std::vector<std::jthread> others;
      for (unsigned i = 1; i < threads; ++i) others.emplace_back([this] { Work(); });
      Work();
    }
    KVCACHE_RETURN_IF_ERROR(status_);
    return writer_->Finish();
  }

 private:
  DType TypeOf(const TensorSpec& spec) const {
    if (spec.dims.size() == 1 || spec.keep_f32) return DType::kF32;
    return TypeOfMatrix({request_.type, request_.mix},
                        {.name = spec.name,
                         .inputs = spec.dims[0],
                         .layers = request_.shape.layers,
                         .tied = request_.shape.output == Output::kTied});
  }

  GgufHeader Header() const {
    GgufHeader header;
    header.SetString("general.architecture", architecture_.name);
    // llama.cpp expects certain tokens in a model whose name contains "phi3".
    const std::string_view family = architecture_.name == "phi3" ? "phi" : architecture_.name;
    header.SetString("general.name", StrCat("random ", family, " of seed ", request_.seed));
    header.SetUint32("general.file_type", FileTypeOf({request_.type, request_.mix}));
    header.SetUint32("general.quantization_version", 2);
    architecture_.add_metadata(request_.shape, header);
    AddVocabulary(request_.shape.vocab, request_.control_tokens, header);
    if (!request_.chat_template.empty()) {
      header.SetString("tokenizer.chat_template", request_.chat_template);
    }
    for (const TensorSpec& spec : specs_) {
      header.AddTensor(spec.name, GgmlTypeOf(TypeOf(spec)), spec.dims);
    }
    return header;
  }

  void Cut() {
    for (std::size_t i = 0; i < specs_.size(); ++i) {
      const std::uint64_t elements = Elements(specs_[i]);
      for (std::uint64_t first = 0; first < elements; first += kChunk) {
        chunks_.push_back({i, first, std::min(kChunk, elements - first)});
      }
    }
  }

  void Work() {
    std::vector<float> values;
    std::vector<std::byte> bytes;
    for (std::size_t i; (i = next_.fetch_add(1)) < chunks_.size();) {
      Status status = MakeChunk(chunks_[i], values, bytes);
      if (status.ok()) continue;
      next_ = chunks_.size();  // stops the other threads as well
      const std::lock_guard lock(status_mutex_);
      status_ = std::move(status);
    }
  }

  Status MakeChunk(const Chunk& chunk, std::vector<float>& values, std::vector<std::byte>& bytes) {
    const TensorSpec& spec = specs_[chunk.tensor];
    const DType type = TypeOf(spec);
    values.resize(chunk.count);
    bytes.resize(static_cast<std::size_t>(BytesOf(type, static_cast<std::int64_t>(chunk.count))));
    if (spec.values.empty()) {
      RandomWeights(request_.seed, spec.name)
          .Fill(spec.distribution, spec.scale, chunk.first, values);
    } else {
      std::copy_n(spec.values.begin() + static_cast<std::ptrdiff_t>(chunk.first), chunk.count,
                  values.begin());
    }
    KVCACHE_RETURN_IF_ERROR(Quantize(type, values, bytes));
    const auto offset = BytesOf(type, static_cast<std::int64_t>(chunk.first));
    return writer_->Write(chunk.tensor, static_cast<std::uint64_t>(offset), bytes);
  }

  const Request& request_;
  const Architecture& architecture_;
  const std::vector<TensorSpec> specs_;
  std::unique_ptr<GgufWriter> writer_;
  std::vector<Chunk> chunks_;
  std::atomic<std::size_t> next_{0};
  std::mutex status_mutex_;
  Status status_;  // the last error, if any
};

}  // namespace

Status MakeModel(const Request& request, const std::string& path) {
  KVCACHE_ASSIGN_OR_RETURN(const Architecture* architecture,
                           FindArchitecture(request.architecture));
  if (request.type == DType::kI8 || request.type == DType::kI32) {
    return {StatusCode::kInvalidArgument,
            StrCat("weights cannot have type ", InfoOf(request.type).name)};
  }
  KVCACHE_RETURN_IF_ERROR(CheckShape(request.shape, request.type));
  if (request.control_tokens.size() >
      static_cast<std::size_t>(request.shape.vocab - kFixedPieces)) {
    return {StatusCode::kInvalidArgument,
            StrCat(request.control_tokens.size(),
                   " control tokens do not fit into a vocabulary of ", request.shape.vocab)};
  }
  KVCACHE_RETURN_IF_ERROR(CheckExperts(*architecture, request.shape));
  return Maker(request, *architecture).Make(path);
}

}  // namespace kvcache::make_model
