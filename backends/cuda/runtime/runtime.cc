#include "backends/cuda/runtime/runtime.h"

#include <fmt/format.h>

#include "backends/cuda/cublaslt/library.h"
#include "backends/cuda/cudnn/library.h"
#include "backends/cuda/runtime/device.h"
#include "backends/cuda/targets.h"

namespace kiln::cuda {
namespace {

struct DeviceFacts {
  std::string name;
  uint64_t memory_bytes = 0;
  int capability = 0;
  uint32_t shared_bytes = 0;
  Machine machine;
};

Expected<DeviceFacts> facts_of(const Driver& driver, DeviceNumber number) {
  const DriverFunctions& api = driver.api();
  char name[256] = {};
  size_t memory = 0;
  int major = 0, minor = 0, shared = 0, cores = 0, second_level = 0;
  KILN_RETURN_IF_ERROR(driver.status_of(api.device_name(name, sizeof name - 1, number), "cuDeviceGetName"));
  KILN_RETURN_IF_ERROR(driver.status_of(api.device_memory(&memory, number), "cuDeviceTotalMem"));
  for (const auto& [attribute, value] :
       {std::pair(Attribute::capability_major, &major), std::pair(Attribute::capability_minor, &minor),
        std::pair(Attribute::shared_bytes_of_block, &shared), std::pair(Attribute::multiprocessors, &cores),
        std::pair(Attribute::second_level_bytes, &second_level)}) {
    KILN_RETURN_IF_ERROR(driver.status_of(api.device_attribute(value, attribute, number), "cuDeviceGetAttribute"));
  }
  const Machine machine{
      .model = name, .cores = static_cast<uint32_t>(cores), .second_level_bytes = static_cast<uint64_t>(second_level)};
  return DeviceFacts{name, memory, 10 * major + minor, static_cast<uint32_t>(shared), machine};
}

/// The targets that a device runs, best first.
std::vector<Target> targets_of(const DeviceFacts& facts) {
  std::vector<Target> targets;
  for (const CudaTarget& target : cuda_targets()) {
    if (can_run(target, facts.capability, facts.shared_bytes)) targets.push_back({"cuda", std::string(target.name)});
  }
  return targets;
}

Discovery::Component compiler_component(const SearchPath& search) {
  const auto found = find_file(search, {"libnvrtc.so.13", "libnvrtc.so.12"});
  if (!found) return {"compiler", fmt::format("no libnvrtc.so.13 in {} folders", search.folders.size()), false};
  return {"compiler", fmt::format("{} ({})", found->path, found->origin), true};
}

/// Nothing misses it: kernels of ours compute the same.
Discovery::Component library_component(const SearchPath& search, const char* name,
                                       const std::vector<std::string>& files) {
  const auto found = find_file(search, files);
  if (!found) return {name, fmt::format("no {} in {} folders", files.front(), search.folders.size()), false};
  return {name, fmt::format("{} ({})", found->path, found->origin), true};
}

/// The driver's numbers of its devices, in its order, which is that of frameworks, too; fills the discovery's devices in
/// the same order.
std::vector<DeviceNumber> all_devices(const Driver& driver, Discovery& discovery) {
  std::vector<DeviceNumber> numbers;
  bool is_any_usable = false;
  int count = 0;
  discovery.status = driver.status_of(driver.api().device_count(&count), "cuDeviceGetCount");
  for (int i = 0; discovery.status.ok() && i < count; ++i) {
    DeviceNumber number = 0;
    discovery.status = driver.status_of(driver.api().device(&number, i), "cuDeviceGet");
    if (!discovery.status.ok()) break;
    const auto facts = facts_of(driver, number);
    numbers.push_back(number);
    if (!facts.ok()) {
      discovery.components.push_back({fmt::format("device {}", i), facts.status().message(), false});
      discovery.devices.push_back({facts.status().message(), {}});
      continue;
    }
    auto targets = targets_of(*facts);
    is_any_usable |= !targets.empty();
    discovery.components.push_back(
        {fmt::format("device {}", i),
         fmt::format("{}, capability {}.{}, {} KiB of shared memory a block", facts->name, facts->capability / 10,
                     facts->capability % 10, facts->shared_bytes >> 10),
         !targets.empty()});
    discovery.devices.push_back({facts->name, std::move(targets), facts->memory_bytes, facts->machine});
  }
  if (discovery.status.ok() && !is_any_usable) {
    discovery.status = error(StatusCode::unavailable, "cuda: none of {} devices runs a target of this build", count);
  }
  return numbers;
}

/// Everything that is found out at once.
struct Found {
  Discovery discovery;
  std::shared_ptr<const Driver> driver;
  std::vector<DeviceNumber> numbers;
};

Found find(const SearchPath& search) {
  Found found;
  auto driver = Driver::open(search);
  if (!driver.ok()) {
    found.discovery.status = driver.status();
    found.discovery.components.push_back({"driver", driver.status().message(), false});
  } else {
    found.driver = std::make_shared<const Driver>(std::move(driver).value());
    found.discovery.components.push_back(
        {"driver",
         fmt::format("{} ({}), version {}.{}", found.driver->library().path(), found.driver->library().origin(),
                     found.driver->version() / 1000, found.driver->version() % 1000 / 10),
         true});
    found.numbers = all_devices(*found.driver, found.discovery);
  }
  found.discovery.components.push_back(compiler_component(search));
  found.discovery.components.push_back(library_component(search, "cudnn", {std::string(k_cudnn_file)}));
  found.discovery.components.push_back(library_component(search, "cublaslt", cublaslt_files()));
  return found;
}

Expected<std::unique_ptr<Device>> open_found(const Found& found, size_t index) {
  KILN_RETURN_IF_ERROR(found.discovery.status);
  if (index >= found.numbers.size()) return error(StatusCode::not_found, "cuda: no device {}", index);
  KILN_ASSIGN_OR_RETURN(auto context, DeviceContext::retain(found.driver, found.numbers[index]));
  return make_device(std::move(context));
}

const Found& found_in_process() {
  static const Found found = find(search_path());
  return found;
}

}  // namespace

std::vector<Target> CudaRuntimeBackend::known_targets() const {
  std::vector<Target> result;
  for (const CudaTarget& target : cuda_targets()) result.push_back({"cuda", std::string(target.name)});
  return result;
}

const Discovery& CudaRuntimeBackend::discover() const { return found_in_process().discovery; }

Expected<std::unique_ptr<Device>> CudaRuntimeBackend::open(size_t index) const {
  return open_found(found_in_process(), index);
}

Discovery discover_devices(const SearchPath& search) { return find(search).discovery; }

Expected<std::unique_ptr<Device>> open_cuda_device(const SearchPath& search, size_t index) {
  return open_found(find(search), index);
}

}  // namespace kiln::cuda
