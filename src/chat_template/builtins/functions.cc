// The global functions: those of Jinja that chat templates use, and those that transformers adds.
#include <ctime>

#include "base/strings.h"
#include "chat_template/builtins/builtins.h"

namespace kvcache::jinja {
namespace {

Result<Value> MakeRange(const Arguments& arguments, Environment& env) {
  KVCACHE_ASSIGN_OR_RETURN(const auto given, Bind(arguments, {"start", "stop", "step"}, 1));
  KVCACHE_ASSIGN_OR_RETURN(std::int64_t begin, IntegerOr(given[0], 0, "start"));
  KVCACHE_ASSIGN_OR_RETURN(std::int64_t end, IntegerOr(given[1], begin, "stop"));
  if (given[1] == nullptr) begin = 0;
  KVCACHE_ASSIGN_OR_RETURN(const std::int64_t step, IntegerOr(given[2], 1, "step"));
  if (step == 0) return InvalidArgument("argument 'step' is 0; must be another integer");
  std::vector<Value> numbers;
  MemoryCharge charge;
  while (step > 0 ? begin < end : begin > end) {
    KVCACHE_RETURN_IF_ERROR(env.budget.Spend(Budget::kStep));
    numbers.emplace_back(begin);
    KVCACHE_RETURN_IF_ERROR(charge.Hold(numbers.size() * sizeof(Value), env.budget));
    if (__builtin_add_overflow(begin, step, &begin)) break;
  }
  return MakeList(std::move(numbers), env.budget);
}

// Returns a dict of the items of a dict argument, or of the pairs of a list argument, then of the
// named arguments.
Result<Dict> Gather(const Arguments& arguments, Environment& env) {
  Dict dict;
  if (arguments.positional.size() > 1) {
    return InvalidArgument(StrCat("the call has ", arguments.positional.size(),
                                  " positional arguments; at most 1 is allowed"));
  }
  for (const Value& source : arguments.positional) {
    if (source.IsDict()) {
      for (const auto& [key, value] : source.dict().items()) {
        KVCACHE_RETURN_IF_ERROR(dict.Set(key, value, env.budget));
      }
      continue;
    }
    KVCACHE_ASSIGN_OR_RETURN(const std::vector<Value> pairs, Iterate(source, env));
    for (const Value& pair : pairs) {
      if (!pair.IsList() || pair.items().size() != 2) {
        return InvalidArgument(
            StrCat("an item is ", pair.KindName(), "; must be a pair of a key and a value"));
      }
      KVCACHE_RETURN_IF_ERROR(dict.Set(pair.items()[0], pair.items()[1], env.budget));
    }
  }
  for (const auto& [name, value] : arguments.named) {
    KVCACHE_RETURN_IF_ERROR(dict.Set(Value(name), value, env.budget));
  }
  return dict;
}

Result<Value> MakeDictionary(const Arguments& arguments, Environment& env) {
  KVCACHE_ASSIGN_OR_RETURN(Dict dict, Gather(arguments, env));
  return MakeDict(std::move(dict));
}

Result<Value> MakeNamespace(const Arguments& arguments, Environment& env) {
  KVCACHE_ASSIGN_OR_RETURN(const Dict dict, Gather(arguments, env));
  KVCACHE_RETURN_IF_ERROR(env.budget.Spend(4 * Budget::kItem));
  auto space = std::make_shared<Namespace>();
  for (const auto& [key, value] : dict.items()) {
    if (!key.IsText()) {
      return InvalidArgument(
          StrCat("a namespace attribute is ", key.KindName(), "; must be a string"));
    }
    KVCACHE_RETURN_IF_ERROR(space->Set(key.bytes(), value, env.budget));
  }
  env.namespaces.Add(space);
  return Value(std::move(space));
}

Result<Value> RaiseException(const Arguments& arguments, Environment& env) {
  KVCACHE_ASSIGN_OR_RETURN(const auto given, Bind(arguments, {"message"}, 1));
  KVCACHE_ASSIGN_OR_RETURN(const MarkedText message, TextOf(*given[0], env.budget));
  return InvalidArgument(StrCat("the template rejects this conversation: ", message.bytes()));
}

Result<Value> StrftimeNow(const Arguments& arguments, Environment& env) {
  KVCACHE_ASSIGN_OR_RETURN(const auto given, Bind(arguments, {"format"}, 1));
  KVCACHE_ASSIGN_OR_RETURN(const MarkedText format, TextOr(given[0], "", "format"));
  if (format.size() > 1000) {
    return InvalidArgument(
        StrCat("argument 'format' has ", format.size(), " bytes; at most 1000 are allowed"));
  }
  char text[64 * 1024];
  // A character at the end distinguishes an empty result from one that did not fit.
  const std::string terminated = StrCat(format.bytes(), "|");
  const std::size_t size = std::strftime(text, sizeof(text), terminated.c_str(), &env.now);
  if (size == 0) return InvalidArgument("the formatted time has more than 64 KiB");
  const Origin origin = format.OriginOf(0, format.size());
  return MakeText(MarkedText(std::string_view(text, size - 1), origin), env.budget);
}

struct Function {
  std::string_view name;
  Result<Value> (*run)(const Arguments& arguments, Environment& env);
};

constexpr Function kFunctions[] = {
    {"range", MakeRange},          {"dict", MakeDictionary},
    {"namespace", MakeNamespace},  {"raise_exception", RaiseException},
    {"strftime_now", StrftimeNow},
};

}  // namespace

bool HasFunction(std::string_view name) {
  for (const Function& function : kFunctions) {
    if (function.name == name) return true;
  }
  return false;
}

Result<Value> CallFunction(std::string_view name, const Arguments& arguments, Environment& env) {
  for (const Function& function : kFunctions) {
    if (function.name == name) return function.run(arguments, env);
  }
  return NotSupported("function", name);
}

}  // namespace kvcache::jinja
