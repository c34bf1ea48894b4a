// What a hostile client can send: raw bytes to a connection before and after its greeting, and messages that were whole
// before some of their bytes were changed.

#include <algorithm>
#include <cstdlib>

#include "base/limits.h"
#include "service/protocol/message.h"
#include "service/protocol/server_connection.h"

namespace {

using namespace kiln;
using namespace kiln::protocol;

std::vector<uint8_t> whole_message(uint8_t kind) {
  const Digest digest = digest_of("fuzz");
  switch (kind % 4) {
    case 0:
      return encode(Build{1, {1, 2, 3, 4}, {{"cpu", "x86-64-v3"}, {"cpu", "x86-64-v4"}}, Priority::warming});
    case 1:
      return encode(Command{2, Verb::capture_put, digest, "{}", {1, 2, 3}, "name"});
    case 2:
      return encode(Built{3, {{digest, digest, 1}}, 1, false, "{}"});
    default:
      return encode(Failure{4, error(StatusCode::internal, "x"), 11});
  }
}

/// Takes each action's bytes apart again: what the daemon says must be readable too.
void check(const std::vector<Action>& actions) {
  for (const Action& action : actions) {
    const auto* send = std::get_if<SendBytes>(&action);
    if (send == nullptr) continue;
    FrameReader reader(limits::k_frame_bytes);
    std::span<const uint8_t> bytes = send->bytes;
    bool whole = false;
    Frame frame;
    if (!reader.feed(bytes, whole, frame).ok() || !whole || !decode(frame).ok()) abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  const uint8_t mode = data[0];
  const uint8_t kind = data[1];
  const std::span<const uint8_t> rest(data + 2, size - 2);

  ServerConnection connection(1);
  check(connection.start());
  if ((mode & 1) != 0) check(connection.receive(encode(Hello{k_protocol_version, "fuzz", 1})));
  if ((mode & 2) != 0) {  // pairs of place and value change a whole message
    auto bytes = whole_message(kind);
    for (size_t i = 0; i + 1 < rest.size(); i += 2) {
      bytes[k_frame_header_bytes + rest[i] % (bytes.size() - k_frame_header_bytes)] = rest[i + 1];
    }
    check(connection.receive(bytes));
  } else {  // in pieces, as a network would
    for (size_t at = 0; at < rest.size();) {
      const size_t piece = std::min<size_t>(rest.size() - at, 1 + kind % 16);
      check(connection.receive(rest.subspan(at, piece)));
      at += piece;
    }
  }
  check(connection.receive_end());
  return 0;
}
