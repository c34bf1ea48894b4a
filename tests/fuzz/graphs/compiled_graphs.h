#pragma once

#include <memory>
#include <string>

#include "cache/store/store.h"
#include "jit/build/build.h"
#include "tests/fuzz/graphs/graph_runner.h"

namespace kiln::fuzz {

/// The whole way of a graph on the host, but for the daemon: compiled and judged in execution workers, published in a
/// store of its own, found by the keys that clients compute, mapped and run.
class CompiledGraphs {
 public:
  /// `directory` is created, and not removed. Errors: the store's.
  static Expected<std::unique_ptr<CompiledGraphs>> create(const std::string& directory,
                                                          const std::string& executor_path);

  /// Cold; again through a reader of its own, as another process would; and built anew after eviction of everything,
  /// while the program that was found first runs on.
  Outcome check(const Graph& graph);

 private:
  Status build_and_publish(const Graph& graph);

  std::string m_directory;
  Target m_target;
  RunnerFactory m_make_runner;
  std::unique_ptr<CacheStore> m_store;
};

}  // namespace kiln::fuzz
