#include "server/api/page/assets.h"

#include <algorithm>
#include <array>
#include <string>
#include <string_view>

#include "server/page_texts.h"

namespace kvcache::server::page {
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

void SendFile(const ServerContext& context) {
  const auto* const file = std::find_if(
      kFiles.begin(), kFiles.end(), [&](const PageFile& one) { return one.path == context.path; });
  context.reply->Send(
      200, std::string(file->text),
      {{"Content-Type", std::string(file->type)},
       {"Cache-Control", "no-cache"},
       {"X-Content-Type-Options", "nosniff"},
       {"Referrer-Policy", "no-referrer"},
       {"Content-Security-Policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"}});
}

}  // namespace

std::vector<Route> FileRoutes() {
  std::vector<Route> routes;
  for (const PageFile& file : kFiles) {
    routes.push_back({"GET", file.path, AtOnce{SendFile}, Audience::kEveryone});
  }
  return routes;
}

}  // namespace kvcache::server::page
