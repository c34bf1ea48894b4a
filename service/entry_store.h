#pragma once

#include <string>

#include "base/expected.h"
#include "jit/build/build.h"
#include "service/protocol/message.h"

namespace kiln {

/// The daemon's store, as the server uses it: everything here may block, and is called from one thread of its
/// own.
class EntryStore {
 public:
  virtual ~EntryStore() = default;

  /// Writes artifacts and heads in one batch, and beside the heads of programs the graph (wire form) they are of. When it
  /// returns well, every head is to be found in the index. Errors: resource_exhausted when there is no room.
  virtual Status publish(const BuildResult& result, const std::vector<uint8_t>& graph) = 0;

  /// Answers the verbs about entries (list, show, graph, verify, gc, clear, pin, capture_put) with JSON.
  virtual Expected<std::string> command(const protocol::Command& command) = 0;
};

}  // namespace kiln
