// A random model that decodes over a backend, several sequences at once, for what a pass asks of the device.
//
// Thread safety: none.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gguf/gguf.h"
#include "kvcache/backend.h"
#include "kvcache/cache.h"
#include "make_model/make_model.h"
#include "model/model.h"

namespace kvcache::cuda {

class DecodingModel {
 public:
  // `sequences` sequences of `history` tokens each. An error ends the program.
  DecodingModel(const make_model::Request& request, Backend& backend, int sequences, int history)
      : sequences_(sequences), history_(history) {
    const std::string path =
        std::filesystem::temp_directory_path() / ("decoding_model." + std::to_string(getpid()));
    Check(make_model::MakeModel(request, path));
    file_ = Value(GgufFile::Open(path));
    std::filesystem::remove(path);
    model_ = Value(LoadModel(*file_, backend));
    cache_ = model_->MakeCache();
    const int batch = std::max(sequences, 64);
    Check(cache_->Init(backend, {.k_type = DType::kF16,
                                 .v_type = DType::kF16,
                                 .max_sequences = sequences,
                                 .capacity = history + 256,
                                 .max_batch = batch}));
    Check(model_->Reserve(batch));
    for (int sequence = 0; sequence < sequences; ++sequence) {
      for (int first = 0; first < history; first += batch) {
        std::vector<Position> positions;
        for (int i = first; i < std::min(history, first + batch); ++i) positions.push_back(i);
        Pass(positions, std::vector(positions.size(), SequenceId{sequence}));
      }
    }
  }

  // Evaluates the next token of each sequence.
  void Step() {
    std::vector<SequenceId> sequences;
    for (int i = 0; i < sequences_; ++i) sequences.push_back(SequenceId{i});
    Pass(std::vector(sequences.size(), Position{history_++}), sequences);
  }

 private:
  static void Check(const Status& status) {
    if (status.ok()) return;
    std::fprintf(stderr, "%s\n", status.message().c_str());
    std::abort();
  }
  template <class T>
  static T Value(Result<T> result) {
    Check(result.status());
    return std::move(result).value();
  }

  void Pass(const std::vector<Position>& positions, const std::vector<SequenceId>& sequences) {
    Check(cache_->StartForward({.positions = positions, .sequences = sequences, .items = {}},
                               ForwardMode::kCompute));
    const std::vector<std::int32_t> tokens(positions.size(), 5);
    Check(model_->Forward(tokens, positions, *cache_));
  }

  int sequences_;
  int history_;
  std::unique_ptr<GgufFile> file_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<Cache> cache_;
};

}  // namespace kvcache::cuda
