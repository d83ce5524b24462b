#include "pull/this_machine.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netinet/in.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string>

namespace kvcache::pull {
namespace {

// An IPv4 address is kept as the IPv6 address that means it (::ffff:a.b.c.d).
using Address = in6_addr;

Address Mapped(const in_addr& v4) {
  Address address{};
  address.s6_addr[10] = 0xff;
  address.s6_addr[11] = 0xff;
  std::memcpy(&address.s6_addr[12], &v4, sizeof(v4));
  return address;
}

std::optional<Address> AddressOf(const sockaddr& address) {
  if (address.sa_family == AF_INET) {
    sockaddr_in v4{};
    std::memcpy(&v4, &address, sizeof(v4));
    return Mapped(v4.sin_addr);
  }
  if (address.sa_family != AF_INET6) return std::nullopt;
  sockaddr_in6 v6{};
  std::memcpy(&v6, &address, sizeof(v6));
  return v6.sin6_addr;
}

// Reads the forms of numbers that the system's resolver takes for addresses.
std::optional<Address> AddressOf(const std::string& text) {
  in_addr v4{};
  if (inet_aton(text.c_str(), &v4) != 0) return Mapped(v4);
  Address v6{};
  if (inet_pton(AF_INET6, text.substr(0, text.find('%')).c_str(), &v6) == 1) return v6;
  return std::nullopt;
}

bool IsLoopback(const Address& address) {
  if (IN6_IS_ADDR_LOOPBACK(&address) || IN6_IS_ADDR_UNSPECIFIED(&address)) return true;
  if (!IN6_IS_ADDR_V4MAPPED(&address)) return false;
  const std::uint8_t* const v4 = &address.s6_addr[12];
  const bool is_any = std::all_of(v4, v4 + 4, [](std::uint8_t byte) { return byte == 0; });
  return v4[0] == 127 || is_any;
}

bool IsOfAnInterface(const Address& address) {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return false;
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(list, &freeifaddrs);
  for (const ifaddrs* one = list; one != nullptr; one = one->ifa_next) {
    if (one->ifa_addr == nullptr) continue;
    const auto own = AddressOf(*one->ifa_addr);
    if (own && std::memcmp(&*own, &address, sizeof(address)) == 0) return true;
  }
  return false;
}

bool IsOwn(const Address& address) {
  return IsLoopback(address) || IsOfAnInterface(address);
}

// Returns a host without its port and brackets, in lower case.
std::string BareHost(std::string_view host) {
  if (host.starts_with('[')) {
    host = host.substr(1, host.find(']') - 1);
  } else if (std::count(host.begin(), host.end(), ':') == 1) {
    host = host.substr(0, host.find(':'));
  }
  while (host.ends_with('.')) host.remove_suffix(1);
  std::string bare(host);
  for (char& c : bare) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
  return bare;
}

}  // namespace

bool NamesThisMachine(std::string_view host) {
  const std::string bare = BareHost(host);
  if (bare == "localhost" || bare.ends_with(".localhost")) return true;
  const auto address = AddressOf(bare);
  return address && IsLoopback(*address);
}

bool IsThisMachine(const sockaddr& address) {
  const auto known = AddressOf(address);
  return known && IsOwn(*known);
}

bool IsAddressOfThisMachine(std::string_view text) {
  const auto address = AddressOf(std::string(text));
  return address && IsOwn(*address);
}

}  // namespace kvcache::pull
