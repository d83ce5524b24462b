// assistant_oracle: computes the logits of a draft head for compare.py.
//
//   assistant_oracle MODEL HEAD LENGTH... < INPUT > LOGITS
//
// INPUT is token ids (int32). Behind each of the ascending lengths, the head drafts kDrafts times: behind the
// text's first LENGTH tokens and each of the next ones. LOGITS are float32 [lengths, kDrafts, vocabulary].
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <iterator>
#include <string>
#include <vector>

#include "engine/engine_impl.h"
#include "engine/prefixes/hidden_states.h"
#include "kvcache_engine/session.h"

namespace kvcache {
namespace {

constexpr int kDrafts = 5;

Status Draft(Engine& engine, const Session& session, std::span<const std::int32_t> following) {
  const Position at = session.position();
  const float* const state = engine.states()->Find(session.sequence(), at - 1);
  if (state == nullptr) return {StatusCode::kNotFound, "the last token's state is not known"};
  std::vector<float> states(state, state + engine.info().hidden_size);
  std::vector<float> logits(static_cast<std::size_t>(engine.info().vocabulary));
  const Position position[] = {at};
  const SequenceLength row[] = {{session.sequence(), at}};
  KVCACHE_RETURN_IF_ERROR(engine.model().BeginDrafts(engine.cache(), row));
  for (const std::int32_t token : following) {
    KVCACHE_RETURN_IF_ERROR(engine.model().Draft({&token, 1}, position, states.data(),
                                                 engine.cache(), logits.data(), states.data()));
    std::cout.write(reinterpret_cast<const char*>(logits.data()),
                    static_cast<std::streamsize>(logits.size() * sizeof(float)));
  }
  return Status::Ok();
}

Status Run(const std::string& model, const std::string& head, std::span<char* const> lengths) {
  const std::string in(std::istreambuf_iterator<char>(std::cin), {});
  std::vector<std::int32_t> tokens(in.size() / sizeof(std::int32_t));
  std::memcpy(tokens.data(), in.data(), tokens.size() * sizeof(std::int32_t));
  KVCACHE_ASSIGN_OR_RETURN(const auto engine,
                           Engine::Open(model, {.k_type = DType::kF32,
                                                .v_type = DType::kF32,
                                                .context = static_cast<int>(tokens.size()),
                                                .prefill_chunk = 64,
                                                .draft_head = head}));
  Session session(*engine, SequenceId{0});
  for (const char* const text : lengths) {
    const auto length = static_cast<std::size_t>(std::atoi(text));
    const std::size_t done = session.tokens().size();
    if (length <= done || length + kDrafts > tokens.size()) {
      return {StatusCode::kInvalidArgument, "the lengths do not fit the tokens"};
    }
    KVCACHE_RETURN_IF_ERROR(session.Append(std::span(tokens).subspan(done, length - done)));
    KVCACHE_RETURN_IF_ERROR(Draft(*engine, session, std::span(tokens).subspan(length, kDrafts)));
  }
  return Status::Ok();
}

}  // namespace
}  // namespace kvcache

int main(int argc, char** argv) {
  if (argc < 4) return 2;
  const kvcache::Status status =
      kvcache::Run(argv[1], argv[2], std::span(argv, static_cast<std::size_t>(argc)).subspan(3));
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.message().c_str());
  return status.ok() && std::cout.flush() ? 0 : 1;
}
