#include "base/config/config.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/config/directories.h"
#include "base/limits.h"
#include "base/nearest.h"

extern char** environ;

namespace kiln {
namespace {

constexpr std::array k_keys = {
    ConfigKey{"disable", &Config::disable, "", "Turns Kiln off: clients answer unavailable, nothing is started."},
    ConfigKey{"cache.directory", &Config::cache_directory, "",
              "Where compiled kernels live; it also names the daemon's socket. Empty: $XDG_CACHE_HOME/kiln."},
    ConfigKey{"cache.size_max_bytes", &Config::cache_size_max_bytes, "bytes",
              "The cache's size; beyond it goes what was not in use for longest, except what is pinned."},
    ConfigKey{"cache.allow_network", &Config::cache_allow_network, "",
              "On: the cache may lie on a network file system, where other hosts can disturb its locks and mappings."},
    ConfigKey{"cache.readonly", &Config::cache_readonly, "",
              "On: what is compiled for this process is given to it and not kept in the cache, nor are captures."},
    ConfigKey{"cache.shared", &Config::cache_shared, "",
              "A cache directory of this user or root that is only read, for what neither the cache nor a pack has."},
    ConfigKey{
        "cache.remote", &Config::cache_remote, "",
        "A store that the hosts of a fleet share: redis[s]://host[:port][/database], http[s]://host[:port]/folder, "
        "s3://bucket[/prefix][?region=…&endpoint=…]. Empty: none."},
    ConfigKey{"remote.budget_ms", &Config::remote_budget_ms, "ms",
              "How long a build waits for the fleet's store, all its questions together."},
    ConfigKey{
        "remote.password_file", &Config::remote_password_file, "",
        "The file with the store's password, which nobody else may read; name:password over HTTP, the access key's id "
        "and its secret so for S3. Empty: there is none, or it is AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY."},
    ConfigKey{
        "remote.signing_key", &Config::remote_signing_key, "",
        "The key (kiln key create) that signs what is given to the store. Empty: entries are taken from it only."},
    ConfigKey{
        "remote.untrusted", &Config::remote_untrusted, "",
        "What becomes of code in the store that nobody of packs.trust signed: refuse; judge, it runs as a candidate "
        "and is used where it passes its verdict, and hosts without a signing key give their code, too. Judge lets all "
        "who can write to the store run code as this user.",
        "refuse,judge"},
    ConfigKey{
        "packs.path", &Config::packs_path, "",
        "Folders, with colons between, whose packs (*.kpack) are used in place beside the cache; of the user or the "
        "system."},
    ConfigKey{"packs.trust", &Config::packs_trust, "",
              "The folder with the public keys (*.pub) of those whose packs are used. Empty: nobody's are."},
    ConfigKey{"packs.trust_captures", &Config::packs_trust_captures, "",
              "The same of those whose packs may bring captures, which are Python, too."},
    ConfigKey{
        "client.deadline_ms", &Config::client_deadline_ms, "ms",
        "How long a client waits for a build before it falls back; the work goes on without it. Where kernels race "
        "first, it waits much longer."},
    ConfigKey{
        "client.check", &Config::client_check, "",
        "Whether programs of captured graphs run beside torch, which is right where they differ: first (a program's "
        "first call on this machine), never or always.",
        "first,never,always"},
    ConfigKey{
        "client.wait", &Config::client_wait, "",
        "When a step waits for programs of captured graphs to be built, and does not run in torch meanwhile: always, "
        "first (a graph's first call; what other sizes need later is built beside the steps) or never.",
        "always,first,never"},
    ConfigKey{
        "client.require_hit", &Config::client_require_hit, "",
        "On: a program that is not in the cache or a pack is an error, nothing is compiled and nothing falls back. For "
        "CI."},
    ConfigKey{
        "client.recache", &Config::client_recache, "",
        "On: each program is compiled anew when this process first asks for it, and takes the place of what the cache "
        "has."},
    ConfigKey{"job", &Config::job, "",
              "Names the job that this process is a rank of: all its ranks run the generation of each program that the "
              "first one found. Empty: torchelastic's run id, where there is one."},
    ConfigKey{"deterministic", &Config::deterministic, "",
              "On: equal bits on every machine of a target, with any number of threads; kernels are the target's first "
              "pick and never race."},
    ConfigKey{
        "random", &Config::random, "",
        "Who draws random numbers, dropout's masks among them: torch, the very ones that eager draws of a seed; fast, "
        "kernels themselves, which store none of them.",
        "torch,fast"},
    ConfigKey{"convolution", &Config::convolution, "",
              "Who computes convolutions: kiln; torch; auto, Kiln, but torch those of halves on a processor with AMX, "
              "and those on a device, where nobody has timed Kiln's.",
              "auto,kiln,torch"},
    ConfigKey{
        "attention", &Config::attention, "",
        "Who computes scaled_dot_product_attention of CUDA tensors: torch, by its flash, memory-efficient or cuDNN "
        "attention; kiln, but for dropout and gradients of masks.",
        "kiln,torch"},
    ConfigKey{
        "device.index_errors", &Config::device_index_errors, "",
        "What an index outside its tensor is on a device, after a program's first call: assert, the device's own "
        "assertion, as torch's kernels have it, where there is one; report, an error of that call, for which each call "
        "waits.",
        "assert,report"},
    ConfigKey{"device.recordings", &Config::device_recordings, "",
              "Whether a device that can (CUDA graphs) runs a program that is called over the same memory again as one "
              "recorded launch."},
    ConfigKey{"autotune.mode", &Config::autotune_mode, "",
              "When candidates for products and attention race: max, before a program is handed out; background, "
              "while the machine has nothing else to do; off, when a program asks for it.",
              "off,background,max"},
    ConfigKey{"daemon.use", &Config::daemon_use, "", "Off: mapped hits only, the daemon is neither asked nor started."},
    ConfigKey{"daemon.path", &Config::daemon_path, "",
              "The kilnd program. Empty: beside the library or program that asks, else in PATH."},
    ConfigKey{"daemon.start_timeout_ms", &Config::daemon_start_timeout_ms, "ms",
              "How long a client waits for a daemon to answer, starting it included."},
    ConfigKey{"daemon.idle_exit_ms", &Config::daemon_idle_exit_ms, "ms",
              "The daemon leaves after so long without a request; 0 never."},
    ConfigKey{"daemon.drain_timeout_ms", &Config::daemon_drain_timeout_ms, "ms",
              "How long running builds may take to finish once the daemon was asked to stop."},
    ConfigKey{"worker.path", &Config::worker_path, "", "The kiln-worker program. Empty: beside kilnd, else in PATH."},
    ConfigKey{"worker.count", &Config::worker_count, "", "Builds at once; 0 is one for each processor."},
    ConfigKey{"worker.deadline_ms", &Config::worker_deadline_ms, "ms",
              "A build that takes longer is killed and its key quarantined."},
    ConfigKey{"worker.memory_expected_bytes", &Config::worker_memory_expected_bytes, "bytes",
              "Memory that a build is expected to take: no more run at once than fit in what is free, but one. 0: "
              "memory is not looked at."},
    ConfigKey{"worker.memory_max_bytes", &Config::worker_memory_max_bytes, "bytes",
              "Address space of one compile worker; 0 is no limit."},
    ConfigKey{"worker.quarantine_ms", &Config::worker_quarantine_ms, "ms",
              "How long a key that killed its workers is refused without another try."},
    ConfigKey{"python.path", &Config::python_path, "",
              "The Python that kiln warm --torch runs, searched for vendors' libraries too. Empty: the running one, "
              "else that in PATH."},
    ConfigKey{"libraries.path", &Config::libraries_path, "",
              "Folders, with colons between, where vendors' drivers, loaders and compilers are looked for first."},
    ConfigKey{"log.level", &Config::log_level, "", "trace, debug, info, warn, error or off."},
    ConfigKey{"log.file_max_bytes", &Config::log_file_max_bytes, "bytes",
              "A log file that grows beyond this is rotated."},
    ConfigKey{"log.files", &Config::log_files, "", "Rotated log files kept."},
};

/// Variables that are not keys: short names people know, and what the process reads elsewhere.
struct EnvironmentAlias {
  std::string_view variable;
  std::string_view key;  // empty: not a key
  bool inverted = false;
};
constexpr std::array k_aliases = {
    EnvironmentAlias{"KILN_CACHE_DIR", "cache.directory"},
    EnvironmentAlias{"KILN_NO_DAEMON", "daemon.use", true},
    EnvironmentAlias{"KILN_REQUIRE_HIT", "client.require_hit"},
    EnvironmentAlias{"KILN_READONLY", "cache.readonly"},
    EnvironmentAlias{"KILN_RECACHE", "client.recache"},
    EnvironmentAlias{"KILN_CONFIG", ""},        // read by ConfigSources
    EnvironmentAlias{"KILN_FAULTS", ""},        // fault points, where compiled in
    EnvironmentAlias{"KILN_PROFILE", ""},       // read by jit/run/launch_profile.cc
    EnvironmentAlias{"KILN_CPU_FEATURES", ""},  // read by backends/cpu/features.cc
};

const ConfigKey* find_key(std::string_view name) {
  const auto* row = std::find_if(k_keys.begin(), k_keys.end(), [&](const ConfigKey& key) { return key.name == name; });
  return row == k_keys.end() ? nullptr : row;
}

/// ", the nearest is 'x'", or nothing when no name is close.
template <typename Names>
std::string suggestion(std::string_view wrong, const Names& names) {
  const std::string_view nearest = nearest_name(wrong, names);
  return nearest.empty() ? "" : fmt::format(", the nearest is '{}'", nearest);
}

Status unknown_key(std::string_view where, std::string_view name) {
  std::vector<std::string_view> names;
  for (const ConfigKey& key : k_keys) names.push_back(key.name);
  return invalid_argument("{}: unknown key '{}'{}", where, name.substr(0, 64), suggestion(name, names));
}

/// A sentence about a variable that looks like a key misspelt; "" for one that is somebody else's.
std::string unknown_variable(std::string_view name) {
  std::vector<std::string> names;
  for (const ConfigKey& key : k_keys) names.push_back(environment_name(key.name));
  for (const EnvironmentAlias& alias : k_aliases) names.emplace_back(alias.variable);
  const std::string nearest = suggestion(name, names);
  return nearest.empty() ? "" : fmt::format("the variable {} is ignored{}", name.substr(0, 64), nearest);
}

void add_notice(LoadedConfig& config, std::string_view sentence) {
  if (!config.notice.empty() && !sentence.empty()) config.notice += "; ";
  config.notice += sentence;
}

std::optional<bool> parse_bool(std::string_view given) {
  std::string text(given);
  std::ranges::transform(text, text.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  for (std::string_view yes : {"1", "true", "yes", "on"}) {
    if (text == yes) return true;
  }
  for (std::string_view no : {"0", "false", "no", "off", ""}) {
    if (text == no) return false;
  }
  return std::nullopt;
}

std::optional<uint64_t> parse_number(std::string_view text) {
  uint64_t value = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (code != std::errc() || end != text.data() + text.size() || text.empty()) return std::nullopt;
  return value;
}

bool is_choice(std::string_view choices, std::string_view text) {
  return !text.empty() && text.find(',') == std::string_view::npos &&
         fmt::format(",{},", choices).find(fmt::format(",{},", text)) != std::string::npos;
}

Status set_value(const ConfigKey& key, std::string_view text, ConfigOrigin origin, LoadedConfig& config) {
  const auto refuse = [&](std::string_view expected) {
    return invalid_argument("{}: {} is '{}', expected {}", origin.where, key.name, text.substr(0, 64), expected);
  };
  if (const auto* flag = std::get_if<bool Config::*>(&key.member)) {
    const auto value = parse_bool(text);
    if (!value) return refuse("true or false");
    config.values.** flag = *value;
  } else if (const auto* number = std::get_if<uint64_t Config::*>(&key.member)) {
    const auto value = parse_number(text);
    if (!value) return refuse(key.unit.empty() ? "a whole number" : fmt::format("a whole number of {}", key.unit));
    config.values.** number = *value;
  } else {
    if (!key.choices.empty() && !is_choice(key.choices, text)) return refuse(fmt::format("one of {}", key.choices));
    config.values.*std::get<std::string Config::*>(key.member) = std::string(text);
  }
  config.origins.insert_or_assign(std::string(key.name), std::move(origin));
  return {};
}

/// Walks nested maps down to scalars: {cache: {directory: /x}} and {cache.directory: /x} are the same key.
Status apply_node(const YAML::Node& node, const std::string& prefix, std::string_view path, ConfigLayer layer,
                  LoadedConfig& config, int depth) {
  constexpr int k_depth_max = 4;  // keys have one dot; more levels are a mistake, many an attack
  for (const auto& entry : node) {
    const std::string name =
        prefix.empty() ? entry.first.as<std::string>() : prefix + "." + entry.first.as<std::string>();
    const std::string where = fmt::format("{}:{}", path, entry.first.Mark().line + 1);
    if (entry.second.IsMap() && depth < k_depth_max) {
      KILN_RETURN_IF_ERROR(apply_node(entry.second, name, path, layer, config, depth + 1));
      continue;
    }
    const ConfigKey* key = find_key(name);
    if (key == nullptr) return unknown_key(where, name);
    if (!entry.second.IsScalar() && !entry.second.IsNull())
      return invalid_argument("{}: {} is not a plain value", where, name);
    const std::string text = entry.second.IsNull() ? "" : entry.second.as<std::string>();
    KILN_RETURN_IF_ERROR(set_value(*key, text, {layer, where}, config));
  }
  return {};
}

Status apply_file(const std::string& path, bool must_exist, ConfigLayer layer, LoadedConfig& config) {
  if (path.empty()) return {};
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    if (must_exist) return error(StatusCode::not_found, "config file {} cannot be read", path);
    return {};
  }
  std::ostringstream text;
  text << file.rdbuf();
  return apply_yaml(text.str(), path, layer, config);
}

Status apply_environment(const ConfigSources& sources, LoadedConfig& config) {
  for (const auto& [name, value] : sources.environment) {
    if (!name.starts_with("KILN_")) continue;
    const ConfigOrigin origin{ConfigLayer::environment, name};
    const auto key = std::find_if(k_keys.begin(), k_keys.end(),
                                  [&](const ConfigKey& row) { return environment_name(row.name) == name; });
    if (key != k_keys.end()) {
      KILN_RETURN_IF_ERROR(set_value(*key, value, origin, config));
      continue;
    }
    const auto alias = std::find_if(k_aliases.begin(), k_aliases.end(),
                                    [&](const EnvironmentAlias& row) { return row.variable == name; });
    if (alias == k_aliases.end()) {
      add_notice(config, unknown_variable(name));
      continue;
    }
    if (alias->key.empty()) continue;
    std::string text = value;
    if (alias->inverted) {
      const auto flag = parse_bool(value);
      if (!flag) return invalid_argument("environment: {} is '{}', expected 0 or 1", name, value.substr(0, 64));
      text = *flag ? "false" : "true";
    }
    KILN_RETURN_IF_ERROR(set_value(*find_key(alias->key), text, origin, config));
  }
  return {};
}

void keep_cache_on_this_host(const ConfigSources& sources, LoadedConfig& config) {
  std::string& directory = config.values.cache_directory;
  if (config.values.cache_allow_network || sources.network_file_system_of == nullptr) return;
  const std::string_view network = sources.network_file_system_of(directory);
  if (network.empty()) return;
  std::string local = local_cache_directory(directory);
  add_notice(config, fmt::format("cache.directory {} is on {}; the cache is in {}", directory, network, local));
  directory = std::move(local);
}

}  // namespace

std::span<const ConfigKey> config_keys() { return k_keys; }

std::string environment_name(std::string_view key) {
  std::string name = "KILN_";
  for (const char c : key) name += c == '.' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return name;
}

std::string value_text(const Config& config, const ConfigKey& key) {
  if (const auto* flag = std::get_if<bool Config::*>(&key.member)) return config.**flag ? "true" : "false";
  if (const auto* number = std::get_if<uint64_t Config::*>(&key.member)) return std::to_string(config.**number);
  return config.*std::get<std::string Config::*>(key.member);
}

std::string_view to_string(ConfigLayer layer) {
  switch (layer) {
    case ConfigLayer::defaults:
      return "default";
    case ConfigLayer::system_file:
      return "system file";
    case ConfigLayer::user_file:
      return "user file";
    case ConfigLayer::environment:
      return "environment";
    case ConfigLayer::flag:
      return "flag";
  }
  return "unknown";
}

ConfigSources ConfigSources::from_process(std::vector<std::pair<std::string, std::string>> flags,
                                          std::optional<std::string> config_file) {
  ConfigSources sources;
  sources.flags = std::move(flags);
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string_view text(*variable);
    const size_t equals = text.find('=');
    if (!text.starts_with("KILN_") || equals == std::string_view::npos) continue;
    sources.environment.emplace_back(text.substr(0, equals), text.substr(equals + 1));
  }
  const char* named = std::getenv("KILN_CONFIG");
  if (config_file) {
    sources.user_file = *config_file;
  } else if (named != nullptr && *named != '\0') {
    sources.user_file = named;
  }
  sources.user_file_must_exist = !sources.user_file.empty();
  if (sources.user_file.empty()) sources.user_file = default_config_file();
  return sources;
}

Status apply_yaml(std::string_view text, std::string_view path, ConfigLayer layer, LoadedConfig& config) {
  if (text.size() > limits::k_config_bytes) {
    return invalid_argument("{}: {} bytes, at most {}", path, text.size(), limits::k_config_bytes);
  }
  try {
    const YAML::Node root = YAML::Load(std::string(text));
    if (!root.IsDefined() || root.IsNull()) return {};
    if (!root.IsMap()) return invalid_argument("{}: expected a map of keys", path);
    return apply_node(root, "", path, layer, config, 0);
  } catch (const std::exception& problem) {  // yaml-cpp reports by exceptions; they end here
    return invalid_argument("{}: {}", path, problem.what());
  }
}

Expected<LoadedConfig> load_config(const ConfigSources& sources) {
  LoadedConfig config;
  for (const ConfigKey& key : k_keys) config.origins.emplace(key.name, ConfigOrigin{});
  KILN_RETURN_IF_ERROR(apply_file(sources.system_file, false, ConfigLayer::system_file, config));
  KILN_RETURN_IF_ERROR(apply_file(sources.user_file, sources.user_file_must_exist, ConfigLayer::user_file, config));
  KILN_RETURN_IF_ERROR(apply_environment(sources, config));
  for (const auto& [name, value] : sources.flags) {
    const ConfigKey* key = find_key(name);
    if (key == nullptr) return unknown_key("flag", name);
    KILN_RETURN_IF_ERROR(set_value(*key, value, {ConfigLayer::flag, "--" + name}, config));
  }
  if (config.values.cache_directory.empty()) config.values.cache_directory = default_cache_directory();
  keep_cache_on_this_host(sources, config);
  return config;
}

}  // namespace kiln
