#include "backends/level_zero/target.h"

#include <array>
#include <cstring>

#include "base/bytes.h"
#include "base/limits.h"

namespace kiln::level_zero {
namespace {

constexpr uint64_t k_common = bit(Feature::fp16) | bit(Feature::sub_groups_of_16);

constexpr std::array<DeviceFamily, 2> k_families{{
    {"pvc",
     k_common | bit(Feature::fp64),
     128 << 10,
     95,
     {{0x0bd0, 0x0bdb}, {0x0b69, 0x0b6e}},
     "Intel Data Center GPU Max 1550",
     128,
     16,
     95},
    {"dg2", k_common, 64 << 10, 35, {{0x5690, 0x56c1}, {0x4f80, 0x4f88}}, "Intel Arc A770", 32, 8, 95},
}};

constexpr std::array<std::string_view, 4> k_names{"fp16", "fp64", "sub-groups of 16", "matrix units"};

constexpr uint32_t k_max_group_size = 1024;

}  // namespace

std::string describe(uint64_t features) {
  std::string text;
  for (size_t i = 0; i < k_names.size(); ++i) {
    if ((features >> i & 1) == 0) continue;
    if (!text.empty()) text += ", ";
    text += k_names[i];
  }
  return text;
}

std::span<const DeviceFamily> families() { return k_families; }

const DeviceFamily* find_family(std::string_view name) {
  for (const DeviceFamily& family : k_families) {
    if (family.name == name) return &family;
  }
  return nullptr;
}

Machine default_machine(const DeviceFamily& family) {
  return {.model = std::string(family.device), .cores = family.cores};
}

const DeviceFamily* family_of_device(uint32_t device_id) {
  for (const DeviceFamily& family : k_families) {
    for (const auto& range : family.ids) {
      if (device_id >= range.first && device_id <= range.last) return &family;
    }
  }
  return nullptr;
}

std::vector<uint8_t> encode(const LaunchForm& form) {
  ByteWriter writer;
  writer.write(form.groups);
  writer.write(form.group_size);
  writer.write(form.buffers);
  return writer.take();
}

Expected<LaunchForm> decode_launch_form(std::span<const uint8_t> bytes) {
  uint32_t words[3];
  if (bytes.size() != sizeof words) {
    return invalid_argument("level zero: a launch form of {} bytes, expected {}", bytes.size(), sizeof words);
  }
  std::memcpy(words, bytes.data(), sizeof words);
  const LaunchForm form{words[0], words[1], words[2]};
  if (form.groups == 0 || form.group_size == 0 || form.group_size > k_max_group_size ||
      form.buffers > limits::k_kernel_buffers) {
    return invalid_argument("level zero: a launch of {} groups of {} work-items with {} buffers", form.groups,
                            form.group_size, form.buffers);
  }
  return form;
}

}  // namespace kiln::level_zero
