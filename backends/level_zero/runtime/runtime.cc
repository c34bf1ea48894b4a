#include "backends/level_zero/runtime/runtime.h"

#include "backends/level_zero/runtime/device.h"

namespace kiln::level_zero {
namespace {

Discovery discover_platform() {
  const Platform& platform = Platform::host();
  Discovery discovery;
  discovery.components = platform.components();
  discovery.status = platform.status();
  for (const FoundDevice& found : platform.devices()) {
    const Target target{"level_zero", std::string(found.family->name), found.driver_name};
    discovery.devices.push_back(
        {found.name, {target}, found.memory_bytes, {.model = found.name, .cores = found.cores}});
  }
  return discovery;
}

}  // namespace

std::vector<Target> LevelZeroRuntimeBackend::known_targets() const {
  std::vector<Target> targets;
  for (const DeviceFamily& family : families()) targets.push_back({"level_zero", std::string(family.name), ""});
  return targets;
}

const Discovery& LevelZeroRuntimeBackend::discover() const {
  static const Discovery discovery = discover_platform();
  return discovery;
}

Expected<std::unique_ptr<Device>> LevelZeroRuntimeBackend::open(size_t index) const {
  const Platform& platform = Platform::host();
  KILN_RETURN_IF_ERROR(platform.status());
  if (index >= platform.devices().size()) return error(StatusCode::not_found, "level zero: no device {}", index);
  return open_device(platform, platform.devices()[index]);
}

}  // namespace kiln::level_zero
