// images_oracle: computes this project's logits for compare.py.
//
//   images_oracle MODEL TOKENS AT STATES < INPUT > LOGITS
//
// INPUT is TOKENS token ids (int32), then an image's states, float32 [STATES, hidden_size]. The
// image belongs to the token at position AT. LOGITS are float32 [TOKENS, vocabulary], computed in
// passes of up to 64 tokens.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <iterator>
#include <numeric>
#include <string>
#include <vector>

#include "engine/engine_impl.h"

namespace kvcache {
namespace {

constexpr int kChunk = 64;

struct Input {
  std::vector<std::int32_t> tokens;
  Position at = 0;
  std::int64_t states = 0;
  std::vector<float> values;  // [hidden_size, states]
};

Status Pass(Engine& engine, const Input& input, Position begin, Position end) {
  const auto count = static_cast<std::size_t>(end - begin);
  std::vector<Position> positions(count);
  std::iota(positions.begin(), positions.end(), begin);
  const std::vector<SequenceId> sequences(count, SequenceId{0});
  EngineBatch batch{
      .tokens = std::span(input.tokens).subspan(static_cast<std::size_t>(begin), count),
      .positions = positions,
      .sequences = sequences};
  std::vector<float> states = input.values;
  const EngineImage image{.index = 0,
                          .states = TensorView::Dense(states.data(), DType::kF32,
                                                      engine.info().hidden_size, input.states)};
  if (begin == input.at) batch.images = std::span(&image, 1);
  KVCACHE_RETURN_IF_ERROR(engine.Forward(batch));
  std::vector<std::int32_t> rows(count);
  std::iota(rows.begin(), rows.end(), 0);
  std::vector<float> logits(count * static_cast<std::size_t>(engine.info().vocabulary));
  KVCACHE_RETURN_IF_ERROR(engine.Logits(rows, logits.data()));
  std::cout.write(reinterpret_cast<const char*>(logits.data()),
                  static_cast<std::streamsize>(logits.size() * sizeof(float)));
  return Status::Ok();
}

Status Run(const std::string& model, Input input) {
  KVCACHE_ASSIGN_OR_RETURN(const auto engine,
                           Engine::Open(model, {.k_type = DType::kF32,
                                                .v_type = DType::kF32,
                                                .context = static_cast<int>(input.tokens.size()),
                                                .prefill_chunk = kChunk}));
  const auto hidden_size = static_cast<std::size_t>(engine->info().hidden_size);
  const std::string in(std::istreambuf_iterator<char>(std::cin), {});
  const std::size_t token_bytes = input.tokens.size() * sizeof(std::int32_t);
  input.values.resize(hidden_size * static_cast<std::size_t>(input.states));
  if (in.size() != token_bytes + input.values.size() * sizeof(float)) {
    return {StatusCode::kInvalidArgument,
            "the input has " + std::to_string(in.size()) + " bytes; must have " +
                std::to_string(token_bytes + input.values.size() * sizeof(float))};
  }
  std::memcpy(input.tokens.data(), in.data(), token_bytes);
  std::memcpy(input.values.data(), in.data() + token_bytes, input.values.size() * sizeof(float));
  const auto count = static_cast<Position>(input.tokens.size());
  for (Position begin = 0; begin < count;) {
    const Position end = std::min(begin < input.at ? input.at : count, begin + kChunk);
    KVCACHE_RETURN_IF_ERROR(Pass(*engine, input, begin, end));
    begin = end;
  }
  return Status::Ok();
}

}  // namespace
}  // namespace kvcache

int main(int argc, char** argv) {
  if (argc != 5) return 2;
  kvcache::Input input;
  input.tokens.resize(static_cast<std::size_t>(std::atoi(argv[2])));
  input.at = std::atoi(argv[3]);
  input.states = std::atoi(argv[4]);
  const kvcache::Status status = kvcache::Run(argv[1], std::move(input));
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.message().c_str());
  return status.ok() && std::cout.flush() ? 0 : 1;
}
