// A trace of requests to a language model: lengths, times and block ids, without text.
//
// The format is that of Mooncake's public traces, one JSON object a line, in order of arrival:
//
//   {"timestamp": 27482, "input_length": 1030, "output_length": 52, "hash_ids": [46, 47, 2353]}
//
// Times are in milliseconds. There is an id for every `block_size` tokens of the prompt. The last
// block is usually partial. Ids are chained: an id names its block and everything before it, so it
// always follows the same id. Other fields are ignored.
//
// Source: github.com/kvcache-ai/Mooncake, "Mooncake: Trading More Storage for Less Computation"
// (FAST '25).
// Thread safety: free functions, values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kvcache/status.h"
#include "kvcache/types.h"

namespace kvcache {

struct TraceRequest {
  double seconds = 0.0;
  Position input = 0;                   // tokens of the prompt, at least 1
  Position output = 0;                  // tokens of the answer
  std::vector<std::uint32_t> blocks{};  // ids in [0, Trace::distinct)
};

struct Trace {
  int block_size = 0;
  std::uint32_t distinct = 0;  // number of different ids; they are numbered by first appearance
  std::vector<TraceRequest> requests{};

  // Returns the number of tokens of the request's block i.
  Position BlockTokens(const TraceRequest& request, std::size_t i) const;
  std::int64_t PromptTokens() const;
};

// The most ids and requests of a trace, which bound its memory to about 0.5 GiB.
inline constexpr std::int64_t kMaxTraceBlocks = std::int64_t{1} << 26;
inline constexpr std::int64_t kMaxTraceRequests = std::int64_t{1} << 22;
inline constexpr std::int64_t kMaxTraceLength = std::int64_t{1} << 28;  // tokens of one request

// Reads a trace, plain or compressed with xz. REQUIRES: block_size >= 1. Errors: those of LineReader;
// kCorrupt for a line that breaks the format, with the file, the line, the value and the rule;
// kUnsupported for a trace that is too large.
Result<Trace> ReadTrace(const std::string& path, int block_size);

}  // namespace kvcache
