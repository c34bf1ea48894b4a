#include "backends/level_zero/runtime/platform.h"

#include <algorithm>
#include <span>

namespace kiln::level_zero {
namespace {

std::string hex(std::span<const uint8_t> bytes) {
  std::string text;
  for (const uint8_t byte : bytes) text += fmt::format("{:02x}", byte);
  return text;
}

/// Asks zeDeviceGetModuleProperties, as its pNext, for operations on matrices: ze_intel_device_module_dp_exp_properties_t,
/// which the loader's headers lack. Drivers from 24.05 on answer.
struct MatrixProperties {
  static constexpr uint32_t k_has_dpas = 2;
  uint32_t type = 0x00030013;
  void* next = nullptr;
  uint32_t flags = k_has_dpas;  // what holds where the driver does not answer: building code will show it
};

/// Everything `get(&count, items)` has, in the API's way of asking twice.
template <typename Item, typename Get>
Expected<std::vector<Item>> all_of(std::string_view what, const Item& empty, const Get& get) {
  uint32_t count = 0;
  KILN_RETURN_IF_ERROR(to_status(get(&count, static_cast<Item*>(nullptr)), what));
  std::vector<Item> items(count, empty);
  if (count > 0) KILN_RETURN_IF_ERROR(to_status(get(&count, items.data()), what));
  items.resize(std::min<size_t>(items.size(), count));
  return items;
}

}  // namespace

const Platform& Platform::host() {
  static const Platform platform(SearchPath::configured());
  return platform;
}

Platform::Platform(const SearchPath& search) {
  m_status = look(search);
  if (m_status.ok() && m_devices.empty()) {
    m_status = error(StatusCode::unavailable, "level zero: no device that kernels are made for");
  }
}

Status Platform::look(const SearchPath& search) {
  auto api = Api::open(search);
  if (!api.ok()) m_components.push_back({"loader", api.status().message(), false});
  KILN_RETURN_IF_ERROR(api.status());
  m_api = std::move(api).value();
  const Library& loader = m_api->library;
  m_components.push_back({"loader", fmt::format("{} ({})", loader.path(), loader.origin()), true});
  KILN_ASSIGN_OR_RETURN(const auto drivers,
                        all_of<ze_driver_handle_t>("zeDriverGet", nullptr, [&](uint32_t* count, auto* items) {
                          return m_api->DriverGet(count, items);
                        }));
  Status broken;
  for (const ze_driver_handle_t driver : drivers) {
    const Status usable = look_at_driver(driver);
    if (usable.ok()) continue;
    m_components.push_back({"driver", usable.message(), false});
    broken = usable;
  }
  return m_devices.empty() ? broken : Status();
}

Status Platform::look_at_driver(ze_driver_handle_t driver) {
  ze_driver_properties_t properties{.stype = ZE_STRUCTURE_TYPE_DRIVER_PROPERTIES};
  KILN_RETURN_IF_ERROR(to_status(m_api->DriverGetProperties(driver, &properties), "zeDriverGetProperties"));
  const std::string version = fmt::format("{:08x}", properties.driverVersion);
  m_components.push_back({"driver", "version " + version, true});
  KILN_ASSIGN_OR_RETURN(const auto devices,
                        all_of<ze_device_handle_t>("zeDeviceGet", nullptr, [&](uint32_t* count, auto* items) {
                          return m_api->DeviceGet(driver, count, items);
                        }));
  for (const ze_device_handle_t device : devices) {
    const Status usable = look_at_device(driver, version, device);
    const std::string found =
        usable.ok() ? m_devices.back().name + ", " + std::string(m_devices.back().family->name) : usable.message();
    m_components.push_back({"device", found, usable.ok()});
  }
  return {};
}

Status Platform::look_at_device(ze_driver_handle_t driver, const std::string& driver_version,
                                ze_device_handle_t device) {
  ze_device_properties_t properties{.stype = ZE_STRUCTURE_TYPE_DEVICE_PROPERTIES};
  KILN_RETURN_IF_ERROR(to_status(m_api->DeviceGetProperties(device, &properties), "zeDeviceGetProperties"));
  MatrixProperties matrices;
  ze_device_module_properties_t modules{.stype = ZE_STRUCTURE_TYPE_DEVICE_MODULE_PROPERTIES, .pNext = &matrices};
  KILN_RETURN_IF_ERROR(to_status(m_api->DeviceGetModuleProperties(device, &modules), "zeDeviceGetModuleProperties"));
  ze_device_compute_properties_t compute{.stype = ZE_STRUCTURE_TYPE_DEVICE_COMPUTE_PROPERTIES};
  KILN_RETURN_IF_ERROR(to_status(m_api->DeviceGetComputeProperties(device, &compute), "zeDeviceGetComputeProperties"));

  FoundDevice found{driver, device, family_of_device(properties.deviceId), properties.name};
  if (found.family == nullptr) {
    return error(StatusCode::unimplemented, "{}: device id {:#06x} is of no known family", found.name,
                 properties.deviceId);
  }
  uint64_t features = 0;
  if ((modules.flags & ZE_DEVICE_MODULE_FLAG_FP16) != 0) features |= bit(Feature::fp16);
  if ((modules.flags & ZE_DEVICE_MODULE_FLAG_FP64) != 0) features |= bit(Feature::fp64);
  const std::span sizes(compute.subGroupSizes, std::min<size_t>(compute.numSubGroupSizes, ZE_SUBGROUPSIZE_COUNT));
  if (std::ranges::count(sizes, k_sub_group_size) > 0) features |= bit(Feature::sub_groups_of_16);
  const bool has_matrix_lanes = std::ranges::count(sizes, found.family->matrix_lanes) > 0;
  if ((matrices.flags & MatrixProperties::k_has_dpas) != 0 && has_matrix_lanes) features |= bit(Feature::matrix_units);
  found.features = features;
  if (const uint64_t missing = found.family->features & ~features; missing != 0) {
    return error(StatusCode::failed_precondition, "{}: its driver does not offer {}", found.name, describe(missing));
  }
  found.driver_name =
      fmt::format("{} {:04x} {}", driver_version, properties.deviceId, hex(modules.nativeKernelSupported.id));
  KILN_ASSIGN_OR_RETURN(found.queue_group, computing_group(device));
  found.memory_bytes = memory_of(device);
  found.cores = properties.numSlices * properties.numSubslicesPerSlice;
  m_devices.push_back(std::move(found));
  return {};
}

Expected<uint32_t> Platform::computing_group(ze_device_handle_t device) const {
  const ze_command_queue_group_properties_t empty{.stype = ZE_STRUCTURE_TYPE_COMMAND_QUEUE_GROUP_PROPERTIES};
  KILN_ASSIGN_OR_RETURN(const auto groups,
                        all_of("zeDeviceGetCommandQueueGroupProperties", empty, [&](uint32_t* count, auto* items) {
                          return m_api->DeviceGetCommandQueueGroupProperties(device, count, items);
                        }));
  for (uint32_t group = 0; group < groups.size(); ++group) {
    if ((groups[group].flags & ZE_COMMAND_QUEUE_GROUP_PROPERTY_FLAG_COMPUTE) != 0) return group;
  }
  return error(StatusCode::failed_precondition, "no queue of the device computes");
}

uint64_t Platform::memory_of(ze_device_handle_t device) const {
  const ze_device_memory_properties_t empty{.stype = ZE_STRUCTURE_TYPE_DEVICE_MEMORY_PROPERTIES};
  const auto memories = all_of("zeDeviceGetMemoryProperties", empty, [&](uint32_t* count, auto* items) {
    return m_api->DeviceGetMemoryProperties(device, count, items);
  });
  uint64_t bytes = 0;
  if (memories.ok()) {
    for (const auto& memory : memories.value()) bytes += memory.totalSize;
  }
  return bytes;
}

}  // namespace kiln::level_zero
