#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"

/// Frames: how messages are cut out of a byte stream, on the daemon's socket and between daemon and worker.
///
///   frame = length:u32 kind:u16 flags:u16 payload        all little endian
///
/// length counts the payload alone; flags are 0 (others are refused, so that they can mean something later).
namespace kiln {

inline constexpr size_t k_frame_header_bytes = 8;

struct Frame {
  uint16_t kind = 0;
  std::vector<uint8_t> payload;
};

/// Header and payload in one piece. The payload must have less than 4 GiB.
std::vector<uint8_t> encode_frame(uint16_t kind, std::span<const uint8_t> payload);

/// Cuts frames out of bytes as they come. Holds at most one payload of `payload_max_bytes`, and never more
/// memory than twice the bytes that really came: a header alone reserves nothing.
class FrameReader {
 public:
  explicit FrameReader(size_t payload_max_bytes) : m_payload_max_bytes(payload_max_bytes) {}

  /// The limit for frames whose header is still to come.
  void set_payload_max(size_t bytes) { m_payload_max_bytes = bytes; }

  /// Takes bytes up to the end of the first frame in them and moves `bytes` on; `frame` is set when `whole`.
  /// After an error the stream cannot be read on. Errors: resource_exhausted (too long), invalid_argument
  /// (flags).
  Status feed(std::span<const uint8_t>& bytes, bool& whole, Frame& frame);

  /// Is a frame begun and not whole?
  bool in_frame() const { return m_header_size > 0; }
  /// How much of that frame's payload has come so far.
  size_t bytes_held() const { return m_payload.size(); }

 private:
  size_t m_payload_max_bytes;
  uint8_t m_header[k_frame_header_bytes] = {};
  size_t m_header_size = 0;
  std::vector<uint8_t> m_payload;
};

}  // namespace kiln
