#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace kiln {

/// The folders of the control groups whose limits on `controller` ("cpu", "memory") hold for this process: its own, and
/// those around it; of the unified hierarchy and of older ones. Not each of them need be there. `root` is where /proc and
/// /sys lie.
std::vector<std::string> control_groups_of(std::string_view controller, const std::string& root = "");

}  // namespace kiln
