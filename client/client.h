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
/// daemon or a worker reported. The caller falls back; nothing here ends the process or waits without bound.
class Client {
 public:
  /// `cache_directory` and `config_file` override the configuration when given.
  static Expected<std::unique_ptr<Client>> create(std::optional<std::string> cache_directory,
                                                  std::optional<std::string> config_file);
  /// With a configuration that is loaded already.
  static Expected<std::unique_ptr<Client>> create(const LoadedConfig& config);

  struct Compiled {
    std::shared_ptr<const Program> program;
    std::string how;  // "mapped hit", "built", "joined", "daemon hit"
  };

  struct CompileOptions {
    std::span<const int64_t> symbol_values;
    uint32_t deadline_ms = 0;  // 0: the configuration's
    protocol::Priority priority = protocol::Priority::waiting;
    Connection::ProgressCallback progress;  // called on the calling thread while the daemon builds
  };

  /// The way of a graph: bind symbols → canonicalise → find in the mapped cache → else ask the daemon → find
  /// again.
  Expected<Compiled> compile(const Graph& graph, const CompileOptions& options);

  /// Has the graph built for named targets of this backend, whether or not this host can run them. Nothing is mapped.
  Expected<protocol::Built> build_for(const Graph& graph, const std::vector<std::string>& targets,
                                      const CompileOptions& options);

  /// What this host can run, best first.
  const std::vector<Target>& targets() const { return m_resolver.targets(); }

  /// Where a graph stands in the mapped cache; nothing is built and nothing is counted.
  Expected<Resolver::Lookup> look_up(const Graph& graph, std::span<const int64_t> symbol_values);

  /// A framework's own bytes; nothing when absent.
  std::optional<std::span<const uint8_t>> find_capture(std::span<const uint8_t> key);
  Status put_capture(std::span<const uint8_t> key, std::span<const uint8_t> data);

  std::string stats_json() const { return m_stats.to_json(); }
  std::string explain_json() const { return m_misses.to_json(); }
  const Config& config() const { return m_config; }

 private:
  Client(Config config, OpenDevice device);
  Expected<Compiled> found(Resolver::Lookup lookup, std::string how);
  Expected<Compiled> ask_daemon(const Graph& canonical, Resolver::Lookup miss, const CompileOptions& options);
  Deadline deadline_of(const CompileOptions& options) const;

  Config m_config;
  Resolver m_resolver;
  Connection m_connection;
  Stats m_stats;
  MissLog m_misses;
};

}  // namespace kiln
