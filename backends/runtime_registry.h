#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "backends/backend.h"

namespace kiln {

/// Every runtime backend of this build, the host's first. Light: links no compiler and no vendor library. To add one,
/// add a line to runtime_registry.cc.
std::span<const RuntimeBackend* const> runtime_backends();

/// The target that a name means, without a driver; no two backends have one of the same name.
/// Errors: invalid_argument, naming those there are.
Expected<Target> find_target(std::string_view name);

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
