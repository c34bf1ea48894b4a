#pragma once

#include <optional>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/expected.h"
#include "jit/build/build.h"
#include "service/protocol/message.h"

namespace kiln {

/// A program whose kernels may still race.
struct UntunedProgram {
  Digest key;
  std::vector<uint8_t> graph;  // wire form
  Target target;
  std::string name;
};

/// The daemon's store, as the server uses it: everything here may block, and is called from one thread of its
/// own.
class EntryStore {
 public:
  virtual ~EntryStore() = default;

  /// Writes artifacts and heads in one batch, and beside the heads of programs the graph (wire form) they are of. When it
  /// returns well, every head is to be found in the index. Errors: resource_exhausted when there is no room.
  /// `replaces`: a key that leads elsewhere already leads here from now on, as its next generation; else it stays.
  virtual Status publish(const BuildResult& result, const std::vector<uint8_t>& graph, bool replaces) = 0;

  /// What a published artifact needs to run, as far as it is there.
  virtual std::vector<std::pair<Digest, Artifact>> needs_of(const Digest& artifact) = 0;

  /// The program of the host that was published last of those that are not tuned (is_tuned_program), whose graph is kept and
  /// whose key is not in `except`; nothing when there is none. Nobody here sees how busy a device is, so none races unasked.
  virtual Expected<std::optional<UntunedProgram>> next_untuned(const std::unordered_set<Digest>& except) = 0;

  /// Answers the verbs about entries that are here (list, show, content, verify, gc, clear, pin, capture_put) with JSON.
  virtual Expected<std::string> command(const protocol::Command& command) = 0;
};

}  // namespace kiln
