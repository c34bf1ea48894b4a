#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "backends/runtime_registry.h"

/// Devices and targets by name, over all runtime backends.
namespace kiln {

/// The host's own processor: asking it opens no driver.
const RuntimeBackend& host_backend();

/// By name, or null.
const RuntimeBackend* find_runtime_backend(std::string_view name);

/// Whether code for the target runs on the host's own processor.
bool is_of_host(const Target& target);

/// The target that a name means, as a device of this host runs it: with its driver. Without one when there is no such
/// device. No two backends have a target of the same name. Errors: invalid_argument, naming those there are.
Expected<Target> find_target(std::string_view name);

/// The device of `backend` that runs the target, driver included; nothing when this host has none.
std::optional<size_t> device_for(const RuntimeBackend& backend, const Target& target);

/// A device in use, with what it runs, best first.
struct OpenDevice {
  std::string name;
  std::vector<Target> targets;
  std::shared_ptr<Device> device;
};

/// A device by name: a backend's, or a backend's and an index after a colon ("cpu", "cpu:0"); empty is the host.
/// Errors: invalid_argument for a name that is none; unavailable or not_found, with the backend's reason.
Expected<OpenDevice> open_device(std::string_view name);

}  // namespace kiln
