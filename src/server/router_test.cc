#include "server/router.h"

#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "base/strings.h"
#include "server/api/routes.h"

namespace kvcache::server::router_test {
namespace {

void None(const ServerContext& /*context*/) {}

const std::vector<Route> kRoutes = {
    {"GET", "/health", AtOnce{None}, Audience::kEveryone},
    {"POST", "/items", OnWorker{None}},
    {"POST", "/items/count", OnWorker{None}},
    {"GET", "/items/{id}", OnWorker{None}},
    {"DELETE", "/items/{id}", OnWorker{None}},
    {"POST", "/items/{id}/cancel", OnWorker{None}},
    {"GET", "/names/{name...}", AtOnce{None}, Audience::kAdministrators},
};

TEST(Router, FindsTheRouteOfAMethodAndAPath) {
  struct Case {
    const char* method;
    const char* path;
    const char* route;      // null: none
    const char* allowed;    // of the path
    const char* parameter;  // that the path has
  };
  const std::vector<Case> cases = {
      {"GET", "/health", "/health", "GET, HEAD", ""},
      {"HEAD", "/health", "/health", "GET, HEAD", ""},
      {"POST", "/health", nullptr, "GET, HEAD", ""},
      {"get", "/health", nullptr, "GET, HEAD", ""},
      {"GET", "/Health", nullptr, "", ""},
      {"GET", "/health/", nullptr, "", ""},
      {"GET", "", nullptr, "", ""},
      {"POST", "/items", "/items", "POST", ""},
      {"HEAD", "/items", nullptr, "POST", ""},
      {"POST", "/items/count", "/items/count", "POST", ""},
      {"GET", "/items/count", nullptr, "POST", ""},  // a name, and no {id}
      {"GET", "/items/7", "/items/{id}", "GET, HEAD, DELETE", "7"},
      {"HEAD", "/items/7", "/items/{id}", "GET, HEAD, DELETE", "7"},
      {"DELETE", "/items/7", "/items/{id}", "GET, HEAD, DELETE", "7"},
      {"POST", "/items/7", nullptr, "GET, HEAD, DELETE", "7"},
      {"GET", "/items/{id}", "/items/{id}", "GET, HEAD, DELETE", "{id}"},
      {"GET", "/items/", nullptr, "", ""},
      {"GET", "/items/7/", nullptr, "", ""},
      {"POST", "/items/7/cancel", "/items/{id}/cancel", "POST", "7"},
      {"POST", "/items/count/cancel", "/items/{id}/cancel", "POST", "count"},
      {"POST", "/items//cancel", nullptr, "", ""},
      {"POST", "/items/7/cancel/8", nullptr, "", ""},
      {"GET", "/names/a/b:c", "/names/{name...}", "GET, HEAD", "a/b:c"},
      {"GET", "/names/", "/names/{name...}", "GET, HEAD", ""},
      {"GET", "/names", nullptr, "", ""},
  };
  const Router router(kRoutes);
  for (const Case& each : cases) {
    const RouteMatch match = router.Find(each.method, each.path);
    const std::string name = StrCat(each.method, " ", each.path);
    ASSERT_EQ(match.route == nullptr, each.route == nullptr) << name;
    if (each.route != nullptr) {
      EXPECT_EQ(match.route->path, each.route) << name;
    }
    EXPECT_EQ(match.allowed, each.allowed) << name;
    EXPECT_EQ(match.parameter, each.parameter) << name;
  }
}

TEST(Router, AudiencesAreThoseOfThePathWhateverTheMethod) {
  const Router router(kRoutes);
  EXPECT_EQ(router.Find("POST", "/health").audience, Audience::kEveryone);
  EXPECT_EQ(router.Find("DELETE", "/names/a").audience, Audience::kAdministrators);
  EXPECT_EQ(router.Find("GET", "/nothing").audience, Audience::kUsers);
}

TEST(AllRoutes, AreDistinctAndAllMethodsOfAPathHaveOneAudience) {
  std::set<std::string> seen;
  std::map<std::string_view, Audience> audiences;
  for (const Route& route : AllRoutes()) {
    EXPECT_TRUE(seen.insert(StrCat(route.method, " ", route.path)).second) << route.path;
    EXPECT_EQ(audiences.try_emplace(route.path, route.audience).first->second, route.audience)
        << route.path;
  }
}

TEST(AllRoutes, AreInTheDocuments) {
  const std::string file = StrCat(KVCACHE_SOURCE_DIR, "/docs/server.md");
  std::ostringstream text;
  text << std::ifstream(file).rdbuf();
  for (const Route& route : AllRoutes()) {
    const std::string path(route.path.substr(0, route.path.find("...")));
    const bool of_page = path.starts_with("/page");
    EXPECT_TRUE(of_page || text.str().find(path) != std::string::npos) << path;
  }
}

}  // namespace
}  // namespace kvcache::server::router_test
