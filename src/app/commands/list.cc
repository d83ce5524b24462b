// kvcache list: the models that can be run by name.
#include <algorithm>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "app/commands/command.h"
#include "app/commands/json_report.h"
#include "app/flags/model_store.h"
#include "app/terminal/terminal.h"
#include "base/strings.h"
#include "gguf/gguf.h"

namespace kvcache::app {
namespace {

nlohmann::json Describe(const ListedModel& model) {
  nlohmann::json row = {{"name", model.name}, {"path", model.path}};
  if (!model.error.empty()) {
    row["error"] = model.error;
    return row;
  }
  const auto file = GgufFile::Open(model.path);
  if (!file.ok()) {
    row["error"] = file.status().message();
    return row;
  }
  std::int64_t parameters = 0;
  for (const GgufTensor& tensor : (*file)->tensors()) parameters += tensor.elements();
  const auto architecture = (*file)->GetStringOr("general.architecture", "?");
  row["architecture"] = architecture.ok() ? std::string(*architecture) : "?";
  row["parameters"] = parameters;
  row["bytes"] = (*file)->size_bytes();
  return row;
}

void PrintRow(const nlohmann::json& row, int name_width) {
  const std::string name = OneLine(row["name"].get<std::string>());
  const std::string path = OneLine(row["path"].get<std::string>());
  if (row.contains("error")) {
    const std::string error = OneLine(row["error"].get<std::string>());
    (void)std::printf("%-*s  not readable: %s\n", name_width, name.c_str(), error.c_str());
    return;
  }
  const std::string architecture = OneLine(row["architecture"].get<std::string>());
  (void)std::printf("%-*s  %-12s  %14s  %10s  %s\n", name_width, name.c_str(), architecture.c_str(),
                    WithThousands(row["parameters"].get<std::int64_t>()).c_str(),
                    HumanBytes(row["bytes"].get<std::int64_t>()).c_str(), path.c_str());
}

Status List(bool json) {
  const std::vector<ListedModel> models = ListModels();
  if (!json && models.empty()) {
    (void)std::printf("there are no models; put .gguf files into one of these folders:\n");
    for (const std::string& folder : ModelFolders()) {
      (void)std::printf("  %s\n", OneLine(folder).c_str());
    }
    return Status::Ok();
  }
  std::size_t name_width = 4;
  for (const ListedModel& model : models) name_width = std::max(name_width, model.name.size());
  if (!json) {
    (void)std::printf("%-*s  %-12s  %14s  %10s  %s\n", static_cast<int>(name_width), "NAME",
                      "ARCHITECTURE", "PARAMETERS", "SIZE", "FILE");
  }
  nlohmann::json rows = nlohmann::json::array();
  for (const ListedModel& model : models) {
    rows.push_back(Describe(model));
    if (!json) PrintRow(rows.back(), static_cast<int>(name_width));
  }
  if (json) PrintJson(rows);
  return Status::Ok();
}

}  // namespace

Command AddList(CommandLine& line) {
  FlagSet command = line.AddCommand("list", "List the models that can be run by name");
  const auto json = std::make_shared<bool>(false);
  command.AddSwitch("--json", json.get(), "print one JSON array");
  return {"list", [json] { return List(*json); }};
}

}  // namespace kvcache::app
