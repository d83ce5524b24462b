// Tells this machine from others, so that a server elsewhere cannot lead a pull back here.
//
// Thread safety: free functions.
#pragma once

#include <sys/socket.h>

#include <string_view>

namespace kvcache::pull {

// Returns whether a host of an address, with or without a port, names this machine: localhost and what ends with
// ".localhost", 127.0.0.0/8, 0.0.0.0, ::1 and ::, in every form that the system reads (127.1, 0x7f000001, ::ffff:127.0.0.1).
bool NamesThisMachine(std::string_view host);

// Returns whether a resolved address is this machine's: one of the above, or that of a network interface.
bool IsThisMachine(const sockaddr& address);

// The same for the text of an IP address; false for any other text.
bool IsAddressOfThisMachine(std::string_view text);

}  // namespace kvcache::pull
