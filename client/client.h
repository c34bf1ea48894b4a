#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "base/config/config.h"
#include "base/expected.h"
#include "client/connection/connection.h"
#include "client/stats.h"
#include "frontend/ir/graph.h"
#include "jit/resolve/resolver.h"

namespace kiln {

/// One process's view of Kiln: the mapped cache first, the daemon for what is missing.
///
/// Threading: any thread at once.
/// Errors: unavailable when Kiln is disabled or no daemon may be asked, deadline_exceeded, and what the
/// daemon or a
///   worker reported. The caller falls back; nothing here ends the process or waits without bound.
class Client {
 public:
  /// `cache_directory` and `config_file` override the configuration when given.
  static Expected<std::unique_ptr<Client>> create(std::optional<std::string> cache_directory,
                                                  std::optional<std::string> config_file);

  struct Compiled {
    std::shared_ptr<const Program> program;
    std::string how;  // "mapped hit", "built", "joined", "daemon hit"
  };

  /// The way of a graph: bind symbols → canonicalise → find in the mapped cache → else ask the daemon → find
  /// again. `deadline_ms` 0: the configuration's.
  Expected<Compiled> compile(const Graph& graph, std::span<const int64_t> symbol_values, uint32_t deadline_ms);

  /// A framework's own bytes; nothing when absent.
  std::optional<std::span<const uint8_t>> find_capture(std::span<const uint8_t> key);
  Status put_capture(std::span<const uint8_t> key, std::span<const uint8_t> data);

  std::string stats_json() const { return m_stats.to_json(); }
  std::string explain_json() const { return m_misses.to_json(); }
  const Config& config() const { return m_config; }

 private:
  Client(Config config, const RuntimeBackend& runtime);
  Expected<Compiled> found(Resolver::Lookup lookup, std::string how);
  Expected<Compiled> ask_daemon(const Graph& canonical, Resolver::Lookup miss, uint32_t deadline_ms);

  Config m_config;
  Resolver m_resolver;
  Connection m_connection;
  Stats m_stats;
  MissLog m_misses;
};

}  // namespace kiln
