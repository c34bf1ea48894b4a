#include "base/frame.h"

#include <gtest/gtest.h>

namespace kiln {
namespace {

std::vector<Frame> feed_all(FrameReader& reader, std::span<const uint8_t> bytes, size_t step) {
  std::vector<Frame> frames;
  while (!bytes.empty()) {
    auto part = bytes.first(std::min(step, bytes.size()));
    bytes = bytes.subspan(part.size());
    while (!part.empty()) {
      bool whole = false;
      Frame frame;
      EXPECT_TRUE(reader.feed(part, whole, frame).ok());
      if (whole) frames.push_back(std::move(frame));
    }
  }
  return frames;
}

TEST(FrameReader, cuts_the_same_frames_however_the_bytes_arrive) {
  std::vector<uint8_t> stream;
  for (const size_t size : {0, 1, 7, 8, 9, 1000}) {
    const auto bytes =
        encode_frame(static_cast<uint16_t>(size), std::vector<uint8_t>(size, static_cast<uint8_t>(size)));
    stream.insert(stream.end(), bytes.begin(), bytes.end());
  }
  for (const size_t step : {1, 2, 3, 8, 17, 5000}) {
    FrameReader reader(1000);
    const auto frames = feed_all(reader, stream, step);
    ASSERT_EQ(frames.size(), 6U) << step;
    for (const Frame& frame : frames) {
      EXPECT_EQ(frame.payload, std::vector<uint8_t>(frame.kind, static_cast<uint8_t>(frame.kind)));
    }
    EXPECT_FALSE(reader.in_frame());
  }
}

TEST(FrameReader, refuses_a_frame_beyond_the_limit_at_its_header) {
  const auto bytes = encode_frame(1, std::vector<uint8_t>(101));
  std::span<const uint8_t> header(bytes.data(), k_frame_header_bytes);
  FrameReader reader(100);
  bool whole = false;
  Frame frame;
  EXPECT_EQ(reader.feed(header, whole, frame).code(), StatusCode::resource_exhausted);
}

TEST(FrameReader, refuses_flags_nobody_knows) {
  auto bytes = encode_frame(1, {});
  bytes[6] = 1;
  std::span<const uint8_t> rest(bytes);
  FrameReader reader(100);
  bool whole = false;
  Frame frame;
  EXPECT_EQ(reader.feed(rest, whole, frame).code(), StatusCode::invalid_argument);
}

}  // namespace
}  // namespace kiln
