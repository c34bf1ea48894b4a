#include "base/frame.h"

#include <algorithm>
#include <cassert>
#include <cstring>

namespace kiln {
namespace {

struct Header {
  uint32_t length;
  uint16_t kind;
  uint16_t flags;
};
static_assert(sizeof(Header) == k_frame_header_bytes);

}  // namespace

std::vector<uint8_t> encode_frame(uint16_t kind, std::span<const uint8_t> payload) {
  assert(payload.size() <= UINT32_MAX && "a frame's length is 32 bits");
  const Header header{static_cast<uint32_t>(payload.size()), kind, 0};
  std::vector<uint8_t> bytes(sizeof header + payload.size());
  std::memcpy(bytes.data(), &header, sizeof header);
  if (!payload.empty()) std::memcpy(bytes.data() + sizeof header, payload.data(), payload.size());
  return bytes;
}

Status FrameReader::feed(std::span<const uint8_t>& bytes, bool& whole, Frame& frame) {
  whole = false;
  const size_t header_part = std::min(bytes.size(), k_frame_header_bytes - m_header_size);
  std::memcpy(m_header + m_header_size, bytes.data(), header_part);
  m_header_size += header_part;
  bytes = bytes.subspan(header_part);
  if (m_header_size < k_frame_header_bytes) return {};

  Header header;
  std::memcpy(&header, m_header, sizeof header);
  if (header.flags != 0)
    return invalid_argument("frame of kind {} has flags {:#x}, expected 0", header.kind, header.flags);
  if (header.length > m_payload_max_bytes) {
    return error(StatusCode::resource_exhausted, "frame of kind {} has {} bytes, at most {}", header.kind,
                 header.length, m_payload_max_bytes);
  }
  const size_t payload_part = std::min<size_t>(bytes.size(), header.length - m_payload.size());
  m_payload.insert(m_payload.end(), bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(payload_part));
  bytes = bytes.subspan(payload_part);
  if (m_payload.size() < header.length) return {};

  frame = {header.kind, std::move(m_payload)};
  m_payload.clear();
  m_header_size = 0;
  whole = true;
  return {};
}

}  // namespace kiln
