// The objects that JSON schemas allow: named properties in the order of the schemas, then others.
#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/strings.h"
#include "grammar/schema/compiler.h"

namespace kvcache {
namespace {

using Json = nlohmann::ordered_json;
using Schemas = SchemaCompiler::Schemas;

constexpr std::size_t kMaxNames = 10'000;
constexpr std::size_t kMaxPatterns = 6;  // of 'patternProperties': each may match or not

class ObjectGrammar {
 public:
  ObjectGrammar(const SchemaParts& parts, const std::string& place, int depth,
                SchemaCompiler& compiler)
      : parts_(parts),
        place_(place),
        depth_(depth),
        compiler_(compiler),
        builder_(compiler.builder()),
        json_(compiler.json()) {}

  Status Add(GrammarSymbol rule) {
    KVCACHE_ASSIGN_OR_RETURN(const auto min, CountOf(parts_, "minProperties", place_));
    KVCACHE_ASSIGN_OR_RETURN(const auto max, CountOf(parts_, "maxProperties", place_));
    min_ = min.value_or(0);
    max_ = max.value_or(-1);
    KVCACHE_RETURN_IF_ERROR(ReadPatterns());
    KVCACHE_RETURN_IF_ERROR(ReadMembers());
    if (impossible_) return Status::Ok();
    KVCACHE_RETURN_IF_ERROR(ReadOthers());
    KVCACHE_ASSIGN_OR_RETURN(const GrammarSymbol members, Members());
    builder_.Add(rule, Joined(Joined(builder_.Literal("{"), {members}), builder_.Literal("}")));
    return Status::Ok();
  }

 private:
  struct Member {
    std::string name;
    GrammarSymbol value{};
    bool required = false;
  };

  Status ReadPatterns() {
    for (const Json* const patterns : EachOf(parts_, "patternProperties")) {
      for (const auto& [pattern, schema] : patterns->items()) {
        if (patterns_.contains(pattern)) continue;
        if (patterns_.size() == kMaxPatterns) {
          return SchemaError(place_, StrCat("has more than ", kMaxPatterns,
                                            " different 'patternProperties', which this server "
                                            "does not support"));
        }
        const auto program = compiler_.programs().Pattern(pattern);
        if (!program.ok()) return PatternError(pattern, program.status());
        patterns_.insert(pattern);
      }
    }
    return Status::Ok();
  }

  Status PatternError(const std::string& pattern, const Status& status) const {
    return SchemaError(
        place_, StrCat("has a 'patternProperties' ", Quoted(pattern), " that ", status.message()));
  }

  // Returns what a part says of a named property by itself; null: nothing.
  const Json* PropertyOf(std::ptrdiff_t part, const std::string& name) const {
    const auto& of_part = properties_[static_cast<std::size_t>(part)];
    const auto found = of_part.find(name);
    return found == of_part.end() ? nullptr : found->second;
  }

  // Returns the schemas of a property; nothing: none is allowed. `name`: null for a property without a name of its
  // own, which matches the patterns that `matches` says.
  template <typename Matches>
  std::optional<Schemas> SchemasOf(const std::string* name, Matches&& matches) const {
    Schemas schemas;
    for (const SchemaPart& part : parts_) {
      const Json& schema = *part.schema;
      const Json* const own = name != nullptr ? PropertyOf(&part - parts_.data(), *name) : nullptr;
      bool is_known = own != nullptr;
      if (is_known) schemas.push_back(own);
      if (schema.contains("patternProperties")) {
        for (const auto& [pattern, its] : schema["patternProperties"].items()) {
          if (!matches(pattern)) continue;
          is_known = true;
          schemas.push_back(&its);
        }
      }
      if (!is_known && schema.contains("additionalProperties")) {
        schemas.push_back(&schema["additionalProperties"]);
      }
    }
    const bool refused = std::any_of(schemas.begin(), schemas.end(),
                                     [](const Json* schema) { return *schema == false; });
    if (refused) return {};
    return schemas;
  }

  Status ReadMembers() {
    std::vector<std::string> names;
    std::set<std::string> known;
    std::set<std::string> required;
    const auto take = [&](const std::string& name) {
      if (known.insert(name).second) names.push_back(name);
    };
    for (const SchemaPart& part : parts_) {
      auto& of_part = properties_.emplace_back();
      if (part.schema->contains("patternProperties")) names_properties_ = true;
      if (!part.schema->contains("properties")) continue;
      names_properties_ = true;
      for (const auto& [name, schema] : (*part.schema)["properties"].items()) {
        take(name);
        of_part.emplace(name, &schema);
      }
    }
    for (const Json* const list : EachOf(parts_, "required")) {
      for (const Json& name : *list) {
        take(name.get<std::string>());
        required.insert(name.get<std::string>());
      }
    }
    if (names.size() > kMaxNames) {
      return SchemaError(
          place_, StrCat("has more than ", kMaxNames, " properties in schemas that hold together"));
    }
    for (const std::string& name : names) {
      KVCACHE_RETURN_IF_ERROR(ReadMember(name, required.contains(name)));
    }
    named_ = std::move(names);
    return Status::Ok();
  }

  Status ReadMember(const std::string& name, bool required) {
    std::set<std::string> matched;
    for (const std::string& pattern : patterns_) {
      const auto matches = compiler_.programs().Matches(pattern, name);
      if (!matches.ok()) return PatternError(pattern, matches.status());
      if (*matches) matched.insert(pattern);
    }
    auto schemas =
        SchemasOf(&name, [&](const std::string& pattern) { return matched.contains(pattern); });
    for (const Json* const of_names : EachOf(parts_, "propertyNames")) {
      KVCACHE_ASSIGN_OR_RETURN(const bool allowed,
                               compiler_.validator().Allows(*of_names, Json(name), place_));
      if (!allowed) schemas.reset();
    }
    if (!schemas) {
      impossible_ = impossible_ || required;
      return Status::Ok();
    }
    const std::string place = StrCat(place_, "/properties/", name);
    KVCACHE_ASSIGN_OR_RETURN(const GrammarSymbol value, compiler_.Value(*schemas, place, depth_));
    members_.push_back({name, value, required});
    return Status::Ok();
  }

  // Properties without names of their own, by the patterns that their names match.
  Status ReadOthers() {
    if (max_ >= 0 && max_ == 0) return Status::Ok();
    for (std::size_t choice = 0; choice < std::size_t{1} << patterns_.size(); ++choice) {
      std::set<std::string> matched;
      Json of_name = Json::array();
      std::size_t bit = 0;
      for (const std::string& pattern : patterns_) {
        const bool matches = (choice >> bit++ & 1) != 0;
        if (matches) matched.insert(pattern);
        const Json one = {{"pattern", pattern}};
        of_name.push_back(matches ? one : Json{{"type", "string"}, {"not", one}});
      }
      const auto schemas =
          SchemasOf(nullptr, [&](const std::string& pattern) { return matched.contains(pattern); });
      if (schemas) KVCACHE_RETURN_IF_ERROR(ReadOther(*schemas, std::move(of_name)));
    }
    return Status::Ok();
  }

  Status ReadOther(const Schemas& schemas, Json of_name) {
    const std::string place = StrCat(place_, "/additionalProperties");
    KVCACHE_ASSIGN_OR_RETURN(const GrammarSymbol value, compiler_.Value(schemas, place, depth_));
    of_name.push_back({{"type", "string"}});
    if (!named_.empty()) of_name.push_back({{"not", Json{{"enum", named_}}}});
    KVCACHE_ASSIGN_OR_RETURN(
        const Json* const name,
        compiler_.references().Keep(Json{{"allOf", std::move(of_name)}}, place_));
    Schemas of_names = EachOf(parts_, "propertyNames");
    of_names.push_back(name);
    KVCACHE_ASSIGN_OR_RETURN(const GrammarSymbol key,
                             compiler_.Value(of_names, place_ + "/propertyNames", depth_));
    const GrammarSymbol other = builder_.AnyOf({{key, json_.Colon(), value}});
    // The schemas name properties, and none of them speaks of this one.
    if (schemas.empty() && names_properties_) builder_.MarkUnwanted(other);
    others_.push_back({other});
    return Status::Ok();
  }

  // What may follow is a rule for each place among the members and each count of those before it, as far as the
  // count matters.
  Result<GrammarSymbol> Members() {
    const auto always = std::count_if(members_.begin(), members_.end(),
                                      [](const Member& member) { return member.required; });
    if (max_ >= std::ssize(members_) && others_.empty()) max_ = -1;
    if (min_ > always + 1 && !others_.empty()) {
      return UnsupportedKeyword(place_,
                                "minProperties, where more than one property without a name of "
                                "its own may have to be written");
    }
    top_ = max_ >= 0 ? max_ : std::max<std::int64_t>({1, min_ > always ? min_ : 0});
    std::vector<GrammarSymbol> after;  // [count]
    for (std::int64_t count = 0; count <= top_; ++count) after.push_back(Tail(count));
    for (auto member = members_.rbegin(); member != members_.rend(); ++member) {
      if (builder_.too_large()) return SchemaError(place_, "makes the grammar too large");
      std::vector<GrammarSymbol> before;
      for (std::int64_t count = 0; count <= top_; ++count) {
        before.push_back(Before(*member, count, after));
      }
      after = std::move(before);
    }
    return after[0];
  }

  // Returns the count behind one more member; none: there are too many.
  std::optional<std::size_t> OneMore(std::int64_t count) const {
    if (count < top_) return static_cast<std::size_t>(count + 1);
    return max_ >= 0 ? std::nullopt : std::optional(static_cast<std::size_t>(top_));
  }

  GrammarSymbol Before(const Member& member, std::int64_t count,
                       const std::vector<GrammarSymbol>& after) {
    const GrammarSymbol rule = builder_.NewRule();
    if (const auto next = OneMore(count)) {
      GrammarSequence pair = Joined(json_.Constant(member.name), {json_.Colon(), member.value});
      pair.push_back(after[*next]);
      builder_.Add(rule, count > 0 ? Joined({json_.Comma()}, pair) : std::move(pair));
    }
    if (!member.required) builder_.Add(rule, {after[static_cast<std::size_t>(count)]});
    return rule;
  }

  // Returns what may follow all members. Names of others may be equal, so that all of them count as one.
  GrammarSymbol Tail(std::int64_t count) {
    const std::int64_t needed = min_ > top_ && max_ < 0 ? 0 : min_ - count;
    const GrammarSymbol rule = builder_.NewRule();
    if (needed <= 0) builder_.Add(rule, {});
    if (others_.empty() || needed > 1 || (max_ >= 0 && count >= max_)) return rule;
    if (!other_) {
      other_ = builder_.AnyOf(others_);
      next_ = builder_.AnyOf({{json_.Comma(), *other_}});
    }
    const GrammarSequence more = builder_.Repeat(*next_, 0, max_ < 0 ? -1 : max_ - count - 1);
    builder_.Add(rule, Joined({count > 0 ? *next_ : *other_}, more));
    return rule;
  }

  const SchemaParts& parts_;
  const std::string& place_;
  const int depth_;
  SchemaCompiler& compiler_;
  GrammarBuilder& builder_;
  JsonGrammar& json_;
  std::int64_t min_ = 0;
  std::int64_t max_ = -1;  // any number
  std::int64_t top_ = 1;   // counts from here on are one
  bool impossible_ = false;
  bool names_properties_ = false;
  std::set<std::string> patterns_;
  std::vector<std::map<std::string, const Json*>> properties_;  // by part
  std::vector<std::string> named_;
  std::vector<Member> members_;
  std::vector<GrammarSequence> others_;
  std::optional<GrammarSymbol> other_, next_;
};

}  // namespace

Status AddSchemaObject(GrammarSymbol rule, const SchemaParts& parts, const std::string& place,
                       int depth, SchemaCompiler& compiler) {
  return ObjectGrammar(parts, place, depth, compiler).Add(rule);
}

}  // namespace kvcache
