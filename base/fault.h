#pragma once

#include <string_view>

#include "base/status.h"

namespace kiln {

/// Named places where a test makes the process die or fail. KILN_FAULTS holds "name=action", separated by commas; action
/// is `kill` (SIGKILL) or `error` (an internal error), done the first time a place is passed, or the n-th: "kill@3".
/// Only builds with KILN_FAULT_POINTS have them; elsewhere the line is empty. Threading: any thread.
Status pass_fault_point(std::string_view name);

}  // namespace kiln

#ifdef KILN_FAULT_POINTS
#define KILN_FAULT_POINT(name) KILN_RETURN_IF_ERROR(::kiln::pass_fault_point(name))
#else
#define KILN_FAULT_POINT(name) static_cast<void>(0)
#endif
