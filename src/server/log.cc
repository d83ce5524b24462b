#include "server/log.h"

#include <spdlog/async.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <chrono>
#include <ctime>
#include <exception>
#include <memory>

#include "base/strings.h"

namespace kvcache::server {
namespace {

constexpr std::size_t kMaxLines = 8192;  // that wait to be written

std::shared_ptr<spdlog::logger> g_logger;  // NOLINT: set before other threads begin
LogForm g_form = LogForm::kText;           // NOLINT

std::string TimeText() {
  const auto now = std::chrono::system_clock::now();
  const std::time_t seconds = std::chrono::system_clock::to_time_t(now);
  const auto milliseconds =
      std::chrono::duration_cast<std::chrono::milliseconds>(now.time_since_epoch()).count() % 1000;
  std::tm utc{};
  (void)gmtime_r(&seconds, &utc);
  char text[32];
  (void)std::strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%S", &utc);
  const std::string digits = std::to_string(1000 + milliseconds);
  return StrCat(text, ".", digits.substr(1), "Z");
}

std::string Dumped(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string Line(const char* level, const char* event, const Json& fields) {
  if (g_form == LogForm::kJson) {
    Json line = {{"time", TimeText()}, {"level", level}, {"event", event}};
    line.update(fields);
    return Dumped(line);
  }
  std::string line = StrCat(TimeText(), " ", level, " ", event);
  for (const auto& [name, value] : fields.items()) line += StrCat(" ", name, "=", Dumped(value));
  return line;
}

}  // namespace

Status StartLog(LogLevel level, LogForm form) {
  if (level == LogLevel::kOff) return Status::Ok();
  try {
    spdlog::init_thread_pool(kMaxLines, 1);
    g_logger = std::make_shared<spdlog::async_logger>(
        "kvcache", std::make_shared<spdlog::sinks::stderr_sink_mt>(), spdlog::thread_pool(),
        spdlog::async_overflow_policy::overrun_oldest);
    g_logger->set_pattern("%v");
    g_logger->set_level(level == LogLevel::kInfo ? spdlog::level::info : spdlog::level::err);
    g_logger->flush_on(spdlog::level::info);
    g_form = form;
    return Status::Ok();
  } catch (const std::exception& error) {
    return {StatusCode::kOutOfMemory, StrCat("the log cannot start: ", error.what())};
  }
}

void EndLog() {
  if (g_logger == nullptr) return;
  g_logger->flush();
  g_logger.reset();
  spdlog::shutdown();
}

void LogEvent(LogLevel level, const char* event, const Json& fields) {
  if (g_logger == nullptr) return;
  const auto at = level == LogLevel::kError ? spdlog::level::err : spdlog::level::info;
  if (!g_logger->should_log(at)) return;
  try {
    g_logger->log(at, Line(level == LogLevel::kError ? "error" : "info", event, fields));
  } catch (const std::exception&) {
    return;  // without memory there is no line
  }
}

}  // namespace kvcache::server
