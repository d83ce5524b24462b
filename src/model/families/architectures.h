// The functions that make decoders of all architectures; architectures.cc has the table of their names.
// Each function's file describes the models that it supports.
#pragma once

#include <memory>
#include <string_view>
#include <utility>

#include "kvcache/backend.h"
#include "kvcache/status.h"
#include "model/graph/decoder.h"
#include "model/load/key_reader.h"
#include "model/load/weights.h"

namespace kvcache {

// A file from which a family makes its decoder, without weights. Keys that it does not read are an error.
struct ModelSource {
  std::string_view name;  // of the architecture, since one family may support several
  Backend& backend;
  KeyReader keys;
  WeightReader weights;

  // Returns a decoder of a class whose constructor takes the backend, the name and these values.
  template <typename Kind, typename... Values>
  std::unique_ptr<Decoder> Make(Values&&... values) const {
    return std::make_unique<Kind>(backend, name, std::forward<Values>(values)...);
  }
};
using MakeDecoder = Result<std::unique_ptr<Decoder>> (*)(ModelSource& source);

Result<std::unique_ptr<Decoder>> MakeApertus(ModelSource& source);
Result<std::unique_ptr<Decoder>> MakeBert(ModelSource& source);
Result<std::unique_ptr<Decoder>> MakeCohere2(ModelSource& source);
Result<std::unique_ptr<Decoder>> MakeDeepSeek2(ModelSource& source);
Result<std::unique_ptr<Decoder>> MakeDots1(ModelSource& source);
Result<std::unique_ptr<Decoder>> MakeErnie(ModelSource& source);
Result<std::unique_ptr<Decoder>> MakeExaone4(ModelSource& source);
Result<std::unique_ptr<Decoder>> MakeFalconH1(ModelSource& source);
Result<std::unique_ptr<Decoder>> MakeGemma(ModelSource& source);
Result<std::unique_ptr<Decoder>> MakeGemma3n(ModelSource& source);
Result<std::unique_ptr<Decoder>> MakeGemma4(ModelSource& source);
Result<std::unique_ptr<Decoder>> MakeGemmaEmbedding(ModelSource& source);
Result<std::unique_ptr<Decoder>> MakeGlm4(ModelSource& source);
Result<std::unique_ptr<Decoder>> MakeGlm4Moe(ModelSource& source);
Result<std::unique_ptr<Decoder>> MakeGptOss(ModelSource& source);
Result<std::unique_ptr<Decoder>> MakeGranite(ModelSource& source);
Result<std::unique_ptr<Decoder>> MakeGraniteHybrid(ModelSource& source);
Result<std::unique_ptr<Decoder>> MakeHunyuan(ModelSource& source);
Result<std::unique_ptr<Decoder>> MakeLfm2(ModelSource& source);
Result<std::unique_ptr<Decoder>> MakeLlama(ModelSource& source);
Result<std::unique_ptr<Decoder>> MakeLlama4(ModelSource& source);
Result<std::unique_ptr<Decoder>> MakeMiniMaxM2(ModelSource& source);
Result<std::unique_ptr<Decoder>> MakeMistral3(ModelSource& source);
Result<std::unique_ptr<Decoder>> MakeMllama(ModelSource& source);
Result<std::unique_ptr<Decoder>> MakeModernBert(ModelSource& source);
Result<std::unique_ptr<Decoder>> MakeNemotronH(ModelSource& source);
Result<std::unique_ptr<Decoder>> MakeOlmo2(ModelSource& source);
Result<std::unique_ptr<Decoder>> MakePhi3(ModelSource& source);
Result<std::unique_ptr<Decoder>> MakeQwen2(ModelSource& source);
Result<std::unique_ptr<Decoder>> MakeQwen3(ModelSource& source);
Result<std::unique_ptr<Decoder>> MakeQwen3Next(ModelSource& source);
Result<std::unique_ptr<Decoder>> MakeSeedOss(ModelSource& source);
Result<std::unique_ptr<Decoder>> MakeSmolLm3(ModelSource& source);
Result<std::unique_ptr<Decoder>> MakeT5(ModelSource& source);

}  // namespace kvcache
