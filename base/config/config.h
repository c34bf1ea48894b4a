#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/config/file_system.h"
#include "base/expected.h"

/// Configuration: one struct, one table of its keys, and for each value where it came from.
///
/// Precedence, highest first: flags > KILN_* environment > user file > system file > defaults. A key that
/// nobody knows is an error that names the nearest one in files; in the environment, where other programs have variables
/// of their own, it is passed over, with a notice when it is near to one of ours.
namespace kiln {

/// Every setting with its default. Times in milliseconds, sizes in bytes; 0 means what the key's sentence
/// says.
struct Config {
  bool disable = false;

  std::string cache_directory;
  uint64_t cache_size_max_bytes = uint64_t{8} << 30;
  bool cache_allow_network = false;
  bool cache_readonly = false;
  std::string cache_shared;
  std::string cache_remote;

  uint64_t remote_budget_ms = 200;
  std::string remote_password_file;
  std::string remote_signing_key;
  std::string remote_untrusted = "refuse";

  std::string packs_path;
  std::string packs_trust;
  std::string packs_trust_captures;

  uint64_t client_deadline_ms = 120'000;
  std::string client_check = "first";
  std::string client_wait = "always";
  bool client_require_hit = false;
  bool client_recache = false;

  std::string job;

  bool deterministic = false;
  std::string random = "torch";
  std::string convolution = "auto";
  std::string attention = "torch";
  std::string device_index_errors = "assert";
  bool device_recordings = true;

  std::string autotune_mode = "background";

  bool daemon_use = true;
  std::string daemon_path;
  uint64_t daemon_start_timeout_ms = 2'000;
  uint64_t daemon_idle_exit_ms = 600'000;
  uint64_t daemon_drain_timeout_ms = 30'000;

  std::string worker_path;
  uint64_t worker_count = 0;
  uint64_t worker_deadline_ms = 300'000;
  uint64_t worker_memory_expected_bytes = uint64_t{1} << 30;
  uint64_t worker_memory_max_bytes = uint64_t{16} << 30;
  uint64_t worker_quarantine_ms = 600'000;

  std::string python_path;

  std::string libraries_path;

  std::string log_level = "info";
  uint64_t log_file_max_bytes = uint64_t{4} << 20;
  uint64_t log_files = 3;

  bool operator==(const Config&) const = default;
};

/// One row of the table: the name in files ("cache.directory"; the environment's is KILN_CACHE_DIRECTORY),
/// the member that holds it, its unit ("" for none) and a sentence for people.
struct ConfigKey {
  using Member = std::variant<bool Config::*, uint64_t Config::*, std::string Config::*>;
  std::string_view name;
  Member member;
  std::string_view unit;
  std::string_view sentence;
  std::string_view choices = {};  // of a text, with commas between; empty: any
};

/// All keys, in the order configs/kiln.yaml shows them. Adding a setting: a member above, a row in config.cc and a line in
/// configs/kiln.yaml.
std::span<const ConfigKey> config_keys();

/// "KILN_CACHE_DIRECTORY" for "cache.directory".
std::string environment_name(std::string_view key);

/// The value as configs/kiln.yaml writes it.
std::string value_text(const Config& config, const ConfigKey& key);

enum class ConfigLayer : uint8_t { defaults = 0, system_file = 1, user_file = 2, environment = 3, flag = 4 };
std::string_view to_string(ConfigLayer layer);

/// Which layer gave a value, and where in it: a file's path with line, or a variable's name.
struct ConfigOrigin {
  ConfigLayer layer = ConfigLayer::defaults;
  std::string where;
};

struct LoadedConfig {
  Config values;
  std::map<std::string, ConfigOrigin, std::less<>> origins;  // one per key
  /// A sentence for people about a value that was not taken as given; "" when there is nothing to say.
  std::string notice;
};

/// What to load from. `from_process` fills in this process's environment and the usual files.
struct ConfigSources {
  std::string system_file = "/etc/kiln/config.yaml";
  /// $XDG_CONFIG_HOME/kiln/config.yaml, or the file KILN_CONFIG or a flag names; then it must exist.
  std::string user_file;
  bool user_file_must_exist = false;
  std::vector<std::pair<std::string, std::string>> environment;  // only KILN_* is looked at
  std::vector<std::pair<std::string, std::string>> flags;        // key and value
  /// Which network file system holds a path, if one does. Tests have another answer.
  std::string_view (*network_file_system_of)(const std::string& path) = kiln::network_file_system_of;

  static ConfigSources from_process(std::vector<std::pair<std::string, std::string>> flags = {},
                                    std::optional<std::string> config_file = std::nullopt);
};

/// A cache directory on a network file system gives way to one of this host (cache.allow_network keeps it).
/// Errors: invalid_argument with file, line and key; not_found for a file that was asked for by name.
Expected<LoadedConfig> load_config(const ConfigSources& sources);

/// Reads YAML text into `config`, as the layer's file would be. For tests, fuzzing and `kiln config`.
Status apply_yaml(std::string_view text, std::string_view path, ConfigLayer layer, LoadedConfig& config);

}  // namespace kiln
