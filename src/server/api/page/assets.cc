// The files of the page.
#include <algorithm>
#include <array>
#include <string>
#include <string_view>

#include "server/answer.h"
#include "server/page_texts.h"

namespace kvcache::server {
namespace {

struct PageFile {
  std::string_view path;
  std::string_view type;
  std::string_view text;
};

constexpr std::string_view kStyle = "text/css; charset=utf-8";
constexpr std::string_view kScript = "text/javascript; charset=utf-8";

constexpr std::array kFiles = {
    PageFile{"/", "text/html; charset=utf-8", kPageIndexHtml},
    PageFile{"/page.css", kStyle, kPageCss},
    PageFile{"/page.js", kScript, kPageJs},
    PageFile{"/page/charts.js", kScript, kPageChartsJs},
    PageFile{"/page/chat.js", kScript, kPageChatJs},
    PageFile{"/page/figures.js", kScript, kPageFiguresJs},
    PageFile{"/page/prefixes.js", kScript, kPagePrefixesJs},
    PageFile{"/page/requests.js", kScript, kPageRequestsJs},
    PageFile{"/page/texts.js", kScript, kPageTextsJs},
};

const PageFile* FindFile(std::string_view path) {
  const auto* const found = std::find_if(kFiles.begin(), kFiles.end(),
                                         [&](const PageFile& file) { return file.path == path; });
  return found == kFiles.end() ? nullptr : found;
}

}  // namespace

bool IsPageFile(std::string_view path) {
  return FindFile(path) != nullptr;
}

void SendPageFile(std::string_view path, HttpReply& reply) {
  const PageFile& file = *FindFile(path);
  reply.Send(
      200, std::string(file.text),
      {{"Content-Type", std::string(file.type)},
       {"Cache-Control", "no-cache"},
       {"X-Content-Type-Options", "nosniff"},
       {"Referrer-Policy", "no-referrer"},
       {"Content-Security-Policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"}});
}

}  // namespace kvcache::server
