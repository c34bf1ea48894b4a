#pragma once

#include <atomic>
#include <memory>
#include <span>

#include "client/client.h"

namespace kiln {

/// A program as an op of a framework: called on the framework's queues, in their order. It waits for nothing, but for an index
/// outside its tensor, where the device cannot assert or the configuration wants it reported, and on the first call, which
/// can still be the framework's then. What a queue's owner records waits for nothing at all, and its programs live as long as
/// the client.
///
/// Threading: any thread at once.
class FrameworkCall {
 public:
  explicit FrameworkCall(std::shared_ptr<const Program> program) : m_program(std::move(program)) {}

  /// `queue`: as the device's API names it. Arguments as those of Program::launch.
  /// Errors: of Program::launch; out_of_range for an index, where it is waited for; failed_precondition where a queue's owner
  /// records a program that checks indices on a device that cannot assert.
  Status run(Client& client, void* queue, std::span<const void* const> inputs, std::span<void* const> outputs,
             void* scratch);

 private:
  const std::shared_ptr<const Program> m_program;
  std::atomic<bool> m_was_called = false;
};

}  // namespace kiln
