#include "replay/trace.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "base/errors.h"
#include "base/strings.h"
#include "json/json_text.h"
#include "replay/line_reader.h"

namespace kvcache {
namespace {

using Json = nlohmann::ordered_json;

Result<const Json*> FieldOf(const Json& object, const char* name) {
  const auto found = object.find(name);
  if (found == object.end()) return Corrupt(StrCat("the field ", name, " is missing"));
  return &*found;
}

std::string TextOf(const Json& value) {
  return Quoted(value.dump(-1, ' ', false, Json::error_handler_t::replace));
}

// Returns a whole number in [least, most].
Result<std::int64_t> IntegerOf(const Json& value, std::string_view name, std::int64_t min,
                               std::int64_t max) {
  const bool whole = value.is_number_integer();
  const bool fits = whole && !(value.is_number_unsigned() &&
                               value.get<std::uint64_t>() > static_cast<std::uint64_t>(max));
  if (fits && value.get<std::int64_t>() >= min) return value.get<std::int64_t>();
  return Corrupt(
      StrCat(name, " is ", TextOf(value), "; must be a whole number from ", min, " to ", max));
}

Result<std::int64_t> LengthOf(const Json& object, const char* name, std::int64_t min) {
  KVCACHE_ASSIGN_OR_RETURN(const Json* value, FieldOf(object, name));
  return IntegerOf(*value, name, min, kMaxTraceLength);
}

class Reader {
 public:
  explicit Reader(int block_size) { trace_.block_size = block_size; }

  Status Add(std::string_view line, std::int64_t number) {
    if (std::ssize(trace_.requests) == kMaxTraceRequests) {
      return Unsupported(
          StrCat("a trace has at most ", kMaxTraceRequests, " requests; cut the file"));
    }
    KVCACHE_ASSIGN_OR_RETURN(const Json object, ParseJson(line));
    if (!object.is_object()) return Corrupt(StrCat(TextOf(object), " is not a JSON object"));
    TraceRequest request;
    KVCACHE_ASSIGN_OR_RETURN(const Json* time, FieldOf(object, "timestamp"));
    if (!time->is_number() || !(time->get<double>() >= 0.0)) {
      return Corrupt(StrCat("timestamp is ", TextOf(*time), "; must be a number of at least 0"));
    }
    request.seconds = time->get<double>() / 1000.0;
    KVCACHE_ASSIGN_OR_RETURN(const std::int64_t input, LengthOf(object, "input_length", 1));
    KVCACHE_ASSIGN_OR_RETURN(const std::int64_t output, LengthOf(object, "output_length", 0));
    request.input = static_cast<Position>(input);
    request.output = static_cast<Position>(output);
    KVCACHE_ASSIGN_OR_RETURN(const Json* ids, FieldOf(object, "hash_ids"));
    KVCACHE_RETURN_IF_ERROR(AddBlocks(*ids, number, request));
    trace_.requests.push_back(std::move(request));
    return Status::Ok();
  }

  Trace Take() { return std::move(trace_); }

 private:
  // An id, with its place at first sight.
  struct Block {
    std::uint32_t index = 0;
    std::int64_t before = kNone;  // the id that it follows
    std::int64_t line = 0;
  };
  static constexpr std::int64_t kNone = -1;

  Status AddBlocks(const Json& ids, std::int64_t number, TraceRequest& request) {
    if (!ids.is_array()) return Corrupt(StrCat("hash_ids is ", TextOf(ids), "; must be an array"));
    const std::int64_t expected = (request.input - 1) / trace_.block_size + 1;
    if (static_cast<std::int64_t>(ids.size()) != expected) {
      return Corrupt(StrCat("hash_ids has ", ids.size(), " ids; an input_length of ", request.input,
                            " in blocks of ", trace_.block_size, " needs ", expected));
    }
    blocks_ += expected;
    if (blocks_ > kMaxTraceBlocks) {
      return Unsupported(StrCat("a trace has at most ", kMaxTraceBlocks, " ids; cut the file"));
    }
    request.blocks.reserve(ids.size());
    std::int64_t before = kNone;
    for (const Json& value : ids) {
      KVCACHE_ASSIGN_OR_RETURN(
          const std::int64_t id,
          IntegerOf(value, "an id of hash_ids", 0, std::numeric_limits<std::int64_t>::max()));
      const auto [found, inserted] = known_.try_emplace(id, Block{trace_.distinct, before, number});
      if (inserted) ++trace_.distinct;
      if (found->second.before != before) return NotChained(id, before, found->second);
      request.blocks.push_back(found->second.index);
      before = id;
    }
    return Status::Ok();
  }

  static Status NotChained(std::int64_t id, std::int64_t before, const Block& known) {
    const auto place = [](std::int64_t other) {
      return other == kNone ? std::string("is the first of its prompt") : StrCat("follows ", other);
    };
    return Corrupt(StrCat("id ", id, " of hash_ids ", place(before), " here and ",
                          place(known.before), " in line ", known.line,
                          "; ids are chained, so an id always has the same place"));
  }

  Trace trace_;
  std::unordered_map<std::int64_t, Block> known_;
  std::int64_t blocks_ = 0;
};

}  // namespace

Position Trace::BlockTokens(const TraceRequest& request, std::size_t i) const {
  const std::int64_t begin = static_cast<std::int64_t>(i) * block_size;
  return static_cast<Position>(std::min<std::int64_t>(block_size, request.input - begin));
}

std::int64_t Trace::PromptTokens() const {
  std::int64_t tokens = 0;
  for (const TraceRequest& request : requests) tokens += request.input;
  return tokens;
}

Result<Trace> ReadTrace(const std::string& path, int block_size) {
  KVCACHE_ASSIGN_OR_RETURN(const auto lines, LineReader::Open(path));
  Reader reader(block_size);
  const auto problem = [&] { return StrCat(path, ": no memory for the trace"); };
  KVCACHE_RETURN_IF_ERROR(Guarded(problem, [&]() -> Status {
    std::string line;
    while (true) {
      KVCACHE_ASSIGN_OR_RETURN(const bool more, lines->Next(line));
      if (!more) return Status::Ok();
      if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
      Status status = reader.Add(line, lines->number());
      if (!status.ok()) return std::move(status).WithContext(lines->Where());
    }
  }));
  Trace trace = reader.Take();
  if (trace.requests.empty()) return Corrupt(StrCat(path, ": the trace has no requests"));
  return trace;
}

}  // namespace kvcache
