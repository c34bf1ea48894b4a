#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_set>

#include "base/config/config.h"
#include "base/expected.h"
#include "client/connection/connection.h"
#include "client/stats.h"
#include "frontend/canonical/canonical.h"
#include "jit/resolve/resolver.h"

namespace kiln {

/// An output that is an input has the input's layout, whatever was asked. Errors: invalid_argument.
Status check_outputs(const Graph& graph);

/// One process's view of Kiln: the mapped cache first, the daemon for what is missing.
///
/// Threading: any thread at once.
/// Errors: unavailable when Kiln is disabled or no daemon may be asked, deadline_exceeded, and what the
/// daemon or a worker reported. The caller falls back; nothing here ends the process or waits without bound.
class Client {
 public:
  /// `cache_directory` and `config_file` override the configuration when given. `device`: whose programs these are, by
  /// name (backends/devices.h); empty is the host. `python`: the running one's program, where the configuration has none.
  /// `interrupted`: who waits for the daemon looks whether to go on waiting.
  /// Errors: why there is no such device, in its backend's words.
  static Expected<std::unique_ptr<Client>> create(std::optional<std::string> cache_directory,
                                                  std::optional<std::string> config_file, std::string_view device = {},
                                                  std::string_view python = {}, Interrupted interrupted = {});
  /// Creates a client over a configuration that is loaded already.
  static Expected<std::unique_ptr<Client>> create(const LoadedConfig& config, std::string_view device = {},
                                                  Interrupted interrupted = {});

  struct Compiled {
    std::shared_ptr<const Program> program;
    std::string how;            // "mapped hit", "checked", "built", "tuned", "joined", "daemon hit"
    Digest key;                 // of the program, or of that for many sizes which gave it
    uint64_t compilations = 0;  // that it cost, where nobody else had asked before
  };

  struct CompileOptions {
    std::span<const int64_t> symbol_values;
    uint32_t deadline_ms = 0;  // 0: the configuration's
    protocol::Priority priority = protocol::Priority::waiting;
    bool tune = false;                      // wait until its kernels have raced on this machine
    bool again = false;                     // and race those that have
    bool mapped_only = false;               // no daemon is asked; not_found where one would be, which counts as no miss
    std::string_view label = {};            // what people know it by, before what the graph does: a model's class
    uint32_t threads = 0;                   // that it will run on, and race on; 0: as many as there are cores
    Connection::ProgressCallback progress;  // called on the calling thread while the daemon builds
    std::function<void()> planned;          // the same, where kiln.h's planned() is called
  };

  /// The way of a graph: bind symbols → canonicalise → find in the mapped cache → else ask the daemon → find
  /// again. Where candidates race, a terminal shows how far they are.
  Expected<Compiled> compile(const Graph& graph, const CompileOptions& options);

  /// Has the graph built for named targets of any backend, whether or not this host can run them: for those it cannot,
  /// code is compiled and checked when a host that can first needs it. Nothing is mapped.
  Expected<protocol::Built> build_for(const Graph& graph, const std::vector<std::string>& names,
                                      const CompileOptions& options);

  /// The graph's program for a target of this host, first, and after it all that it is made of; built where it is not there.
  /// Errors: failed_precondition for another target, whose code nobody here can check; as of compile.
  Expected<std::vector<Artifact>> collect(const Graph& graph, const CompileOptions& options, const std::string& target);

  /// Whether programs for many sizes serve here: not where each is to be the same, whatever came before, or has raced.
  bool serves_many_sizes() const;
  /// As of Resolver. Nothing is counted.
  std::optional<Resolver::ForSizes> find_for_sizes(const Digest& graph, std::span<const int64_t> sizes) {
    return m_resolver->find_for_sizes(graph, sizes);
  }
  /// What was found, for these sizes: a hit.
  Expected<Compiled> load(const Resolver::ForSizes& found, std::span<const int64_t> sizes);
  /// Has the daemon build the program that serves options.symbol_values and others. `canonical`: the graph's, of symbols.
  /// Errors: unimplemented where there is none; those of compile.
  Status build_for_sizes(const Canonical& canonical, const CompileOptions& options);

  const OpenDevice& device() const { return m_resolver->device(); }
  /// The stream of the client's device, for memory that callers hold on it; null on the host.
  DeviceStream* stream() { return m_resolver->stream(); }
  /// A stream over a queue of the caller's (Device::adopt_queue). It is kept for the next call with the same queue; beyond
  /// limits::k_client_streams another one is dropped for it. Errors: failed_precondition on the host.
  Expected<std::shared_ptr<DeviceStream>> stream_over(void* native);

  /// The program lives as long as the client: something outside of Kiln runs its kernels.
  void keep(std::shared_ptr<const Program> program);

  /// Where a graph without symbols stands in the mapped cache; nothing is built and nothing is counted.
  Expected<Resolver::Lookup> look_up(const Graph& graph);

  /// A framework's own bytes; nothing when absent.
  std::optional<std::span<const uint8_t>> find_capture(std::span<const uint8_t> key);
  /// The same; what is absent here the daemon looks for in the fleet's store, where one is configured.
  std::optional<std::span<const uint8_t>> fetch_capture(std::span<const uint8_t> key);
  /// `name`: what people know it by, in lists; may be empty.
  Status put_capture(std::span<const uint8_t> key, std::span<const uint8_t> data, std::string_view name);

  std::string stats_json() const { return m_stats.to_json(); }
  /// Why each miss was one, and, where a daemon runs, what its key has otherwise than the nearest in the cache.
  std::string explain_json();
  const Config& config() const { return m_config; }

 private:
  Client(Config config, std::unique_ptr<Resolver> resolver, Interrupted interrupted);
  Expected<Compiled> found(Resolver::Lookup hit, std::string how);
  bool wants_tuning(const CompileOptions& options) const { return options.tune || m_config.autotune_mode == "max"; }
  Expected<Compiled> compile_unseen(const Graph& graph, const CompileOptions& options);
  Expected<Compiled> tune(const Canonical& canonical, Resolver::Lookup untuned, const CompileOptions& options);
  protocol::Build request_for(const Canonical& canonical, std::span<const Target> targets,
                              const CompileOptions& options) const;
  /// For the device's best target, of which other sizes may follow.
  protocol::Build request_for(const Canonical& canonical, const CompileOptions& options) const;
  Expected<Compiled> ask_daemon(const Canonical& canonical, const Resolver::Lookup& miss, const CompileOptions& options,
                                bool is_afresh);
  Expected<protocol::Built> build_and_find(const protocol::Build& request, const Digest& graph,
                                           const CompileOptions& options, Resolver::Lookup& lookup);
  /// Whether the graph is to be compiled whatever the cache has; once for each.
  bool wants_afresh(const Digest& graph);
  Status take_in(protocol::Built& built);
  Deadline deadline_of(const CompileOptions& options) const;
  /// Target::threads of programs that have raced.
  uint32_t threads_of(const CompileOptions& options) const;

  Config m_config;
  const std::unique_ptr<Resolver> m_resolver;
  // process_mutex() guards these.
  std::map<void*, std::shared_ptr<DeviceStream>> m_streams;  // of callers
  std::unordered_set<Digest> m_recached;                     // graphs
  std::unordered_set<std::shared_ptr<const Program>> m_kept;
  Connection m_connection;
  Stats m_stats;
  MissLog m_misses;
};

}  // namespace kiln
