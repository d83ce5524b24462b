#include "backend/cuda/shim/report.h"

#include <dlfcn.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstring>
#include <memory>
#include <mutex>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace kvcache::cuda::shim {
namespace {

// From the checkout's src on, so that texts do not depend on where it lies.
std::string ShortPath(std::string_view path) {
  const std::size_t src = path.rfind("/src/");
  return std::string(src == std::string_view::npos ? path : path.substr(src + 1));
}

// The lines of a command's output.
std::vector<std::string> OutputOf(const std::string& command) {
  std::vector<std::string> lines;
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen(command.c_str(), "r"), &pclose);
  if (pipe == nullptr) return lines;
  std::array<char, 4096> line;
  while (std::fgets(line.data(), line.size(), pipe.get()) != nullptr) {
    lines.emplace_back(line.data(), std::strcspn(line.data(), "\n"));
  }
  return lines;
}

// Returns the source lines of an instruction, that of the innermost function first.
std::vector<std::string> LinesOf(std::uintptr_t place) {
  Dl_info info{};
  if (place == 0 || dladdr(reinterpret_cast<void*>(place), &info) == 0) return {};
  char path[4096];
  const ssize_t length = readlink("/proc/self/exe", path, sizeof(path));
  if (length <= 0) return {};
  std::array<char, 32> offset;
  std::snprintf(offset.data(), offset.size(), "0x%zx",
                place - reinterpret_cast<std::uintptr_t>(info.dli_fbase));
  return OutputOf("addr2line -i -e '" + std::string(path, static_cast<std::size_t>(length)) + "' " +
                  offset.data() + " 2>/dev/null");
}

std::string FindLine(std::uintptr_t place) {
  for (const std::string& line : LinesOf(place)) {
    if (line.find("/cuda/language/") != std::string::npos || line.starts_with("??")) continue;
    return ShortPath(line.substr(0, line.find(" (discriminator")));
  }
  return "an unknown line";
}

// The innermost line that is not of the language itself. Finding it takes a process, so lines are kept.
std::string LineText(std::uintptr_t place) {
  static std::mutex mutex;
  static std::unordered_map<std::uintptr_t, std::string> lines;
  const std::scoped_lock lock(mutex);
  std::string& line = lines[place];
  if (line.empty()) line = FindLine(place);
  return line;
}

std::uintptr_t UnpackPlace(Record record) {
  const std::uint64_t place = PlaceOf(record);
  // Rounding down has left an address within 3 bytes of the place; the call before it takes 5 bytes.
  return place == 0 ? 0 : kernel_text + place * 4 - 2;
}

std::string RaceText(const Report& report) {
  const std::string verb = report.fault == Fault::kWriteBefore ? "wrote" : "read";
  const Record state = report.fault == Fault::kReadBefore ? report.other & kStateMask : 0;
  std::string who = ThreadText(ThreadOf(report.other));
  if (report.other_block) who += " of another block";
  if (state == kReadByLanes) who += " and other lanes";
  if (state == kReadByWarps) who += " and other warps";
  if (state == kReadByBlocks) who += " and other blocks";
  const std::string rule = report.other_block || state == kReadByBlocks
                               ? "blocks of a launch have no order"
                               : "no barrier lies between";
  return who + " " + verb + " it at " + LineText(UnpackPlace(report.other)) + ", and " + rule;
}

std::string ProblemText(const Report& report) {
  switch (report.problem) {
    case Problem::kOutside: return "out of bounds";
    case Problem::kMisaligned: return "misaligned";
    case Problem::kEarly:
      return "the thread has not called WaitForEarlier, and an earlier kernel may use it";
    case Problem::kConstant:
      return "a kernel has written it, and LoadConstant may come before WaitForEarlier";
    case Problem::kOther: return report.text;
    case Problem::kCell: break;
  }
  switch (report.fault) {
    case Fault::kUnwritten: return "nobody has written it";
    case Fault::kPending:
      return "a copy in the background goes there, and nobody has waited for it";
    case Fault::kNone:
    case Fault::kWriteBefore:
    case Fault::kReadBefore: break;
  }
  return RaceText(report);
}

}  // namespace

std::string ThreadText(int thread) {
  return "thread " + std::to_string(thread) + " (warp " + std::to_string(thread / 32) + ", lane " +
         std::to_string(thread % 32) + ")";
}

std::string SiteText(Site site) {
  return ShortPath(site.file) + ":" + std::to_string(site.line);
}

std::string TextOf(const Report& report) {
  std::string text = "block (" + std::to_string(report.block[0]) + ", " +
                     std::to_string(report.block[1]) + ", " + std::to_string(report.block[2]) + ")";
  if (report.thread >= 0) {
    text += ", " + ThreadText(report.thread) + " at ";
    text += report.site.file != nullptr ? SiteText(report.site)
                                        : LineText(report.place == 0 ? 0 : report.place - 1);
  }
  if (report.problem != Problem::kOther) {
    text += report.kind == AccessKind::kRead ? " reads " : " writes ";
    text += std::to_string(report.bytes) + (report.bytes == 1 ? " byte at " : " bytes at ");
    text += report.where;
  }
  return text + ": " + ProblemText(report);
}

}  // namespace kvcache::cuda::shim
