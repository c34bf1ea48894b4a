#pragma once

#include <cstdint>
#include <functional>

#include "backends/host_loops.h"

namespace kiln {

/// The most work a second that so many threads did, each making `call`, which does `work`, at the same time. `call` is told
/// which of the threads it is on.
double best_rate(uint32_t threads, double work, const std::function<void(uint32_t)>& call);

/// The roof of kernels: the floating-point operations a second that so many threads reach in the loop.
double best_rate(uint32_t threads, const HostLoop& loop);

}  // namespace kiln
