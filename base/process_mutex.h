#pragma once

#include <cstdint>
#include <mutex>

namespace kiln {

/// The one mutex of what a process that uses Kiln shares among its threads: statistics, kept blocks, loaded kernels. It is
/// held for a few instructions at a time and never while anything is waited for; who holds it takes no other lock.
/// Fork: the child gets it free, with all it guards whole, at whatever moment another thread forks.
///
///   const std::scoped_lock lock(process_mutex());
std::mutex& process_mutex();

/// How many forks lie between this process and the one that first asked.
uint32_t fork_depth();

}  // namespace kiln
