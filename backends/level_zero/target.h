#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "backends/machine.h"
#include "base/expected.h"

namespace kiln::level_zero {

/// What a device can do, as far as kernels care. The numbers are bits of Image::features and on disk: append, never
/// renumber.
enum class Feature : uint8_t { fp16 = 0, fp64 = 1, sub_groups_of_16 = 2, matrix_units = 3 };

inline constexpr uint64_t bit(Feature feature) { return uint64_t{1} << static_cast<uint8_t>(feature); }
/// "fp16 fp64"
std::string describe(uint64_t features);

/// A family of devices that code is compiled for.
struct DeviceFamily {
  struct IdRange {
    uint32_t first = 0, last = 0;
  };
  std::string_view name;           // Target::name
  uint64_t features = 0;           // that all code may need
  int64_t local_memory_bytes = 0;  // of a work-group
  int64_t registers = 0;           // of 32 bits, of a work-item, that sums may take: with more, compilers spill
  IdRange ids[2];                  // on PCI
  std::string_view device;         // a usual one, and its Xe cores
  uint32_t cores = 0;
  uint32_t matrix_lanes = 0;     // of a sub-group that its matrix units work for; 0: it has none
  int64_t matrix_registers = 0;  // as `registers`, of a work-item of such a sub-group
};

/// Every family there is, best first. One is added here and nowhere else.
std::span<const DeviceFamily> families();
/// Null for a name that is not there.
const DeviceFamily* find_family(std::string_view name);
/// What schedules for the family assume where no device has been asked.
Machine default_machine(const DeviceFamily& family);
/// The family a device belongs to, or null.
const DeviceFamily* family_of_device(uint32_t device_id);

/// What the two halves of the backend agree on: every kernel's name, the width of its sub-groups unless matrix units ask for
/// another, and that its last argument points to the launch's status.
inline constexpr uint32_t k_sub_group_size = 16;
inline constexpr const char* k_kernel_name = "kiln_kernel";

/// How a kernel is launched: DeviceCode::launch. Groups lie along one dimension.
struct LaunchForm {
  uint32_t groups = 0;
  uint32_t group_size = 0;
  uint32_t buffers = 0;
  bool operator==(const LaunchForm&) const = default;
};
std::vector<uint8_t> encode(const LaunchForm& form);
/// Errors: invalid_argument for other bytes, and for a form nothing could be launched with.
Expected<LaunchForm> decode_launch_form(std::span<const uint8_t> bytes);

}  // namespace kiln::level_zero
