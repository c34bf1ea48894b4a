#pragma once

#include <cstddef>

namespace kiln {

/// Sends `size` bytes of a struct in one message, with descriptor `fd` unless it is negative. False when the peer is
/// gone or took less. Never raises SIGPIPE.
bool send_struct(int socket, const void* data, size_t size, int fd);

}  // namespace kiln
