// kiln doctor: one check per function, and the list of them at the end.

#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "backends/devices.h"
#include "base/config/directories.h"
#include "base/config/file_system.h"
#include "cli/command.h"
#include "cli/process.h"
#include "client/connection/start_daemon.h"
#include "client/terminal/text.h"

namespace kiln::cli {
namespace {

enum class Grade : uint8_t { good, none, warning, bad };

struct Finding {
  Grade grade = Grade::good;
  std::string what, found, mend;  // mend: empty when there is nothing to do
};

std::string_view to_string(Grade grade) {
  constexpr std::string_view k_names[] = {"ok", "none", "warning", "bad"};
  return k_names[static_cast<size_t>(grade)];
}

Finding check_switches(const Session& session) {
  const auto& origins = session.loaded().origins;
  if (session.config().disable) {
    return {Grade::warning, "switches", "Kiln is turned off", "unset " + origins.at("disable").where};
  }
  if (!session.config().daemon_use) {
    return {Grade::warning, "switches", "no daemon is used: mapped hits only",
            "unset " + origins.at("daemon.use").where};
  }
  return {Grade::good, "switches", "on", ""};
}

Finding check_configuration(const Session& session) {
  const std::string& notice = session.loaded().notice;
  return {notice.empty() ? Grade::good : Grade::warning, "configuration", notice.empty() ? "read" : notice, ""};
}

Finding check_cache_directory(const Session& session) {
  const std::string path = canonical_path(session.config().cache_directory);
  const Status status = check_private_directory(path);
  if (status.ok()) return {Grade::good, "cache directory", path, ""};
  if (status.code() != StatusCode::not_found) return {Grade::bad, "cache directory", status.message(), ""};
  const std::string parent = existing_part(path);
  if (access(parent.c_str(), W_OK | X_OK) == 0) return {Grade::good, "cache directory", path + ", not made yet", ""};
  return {Grade::bad, "cache directory", fmt::format("{} cannot be made in {}", path, parent),
          "set cache.directory to a place of your own"};
}

Finding check_file_system(const Session& session) {
  const std::string path = existing_part(canonical_path(session.config().cache_directory));
  struct statvfs facts{};
  if (statvfs(path.c_str(), &facts) != 0) {
    return {Grade::bad, "file system", path + ": " + std::strerror(errno), ""};
  }
  if (const std::string_view network = network_file_system_of(path); !network.empty()) {
    return {Grade::warning, "file system", fmt::format("{} is on {}: other hosts can disturb it", path, network),
            "set cache.directory to a disk of this host"};
  }
  if ((facts.f_flag & ST_NOEXEC) != 0) {
    return {Grade::warning, "file system", path + " is mounted noexec: kernels are copied instead of mapped",
            "set cache.directory to a place that may be executed"};
  }
  const uint64_t free_bytes = uint64_t{facts.f_bavail} * facts.f_frsize;
  const bool scarce = free_bytes < std::min<uint64_t>(session.config().cache_size_max_bytes, uint64_t{1} << 30);
  return {scarce ? Grade::warning : Grade::good, "file system", human_bytes(free_bytes) + " free",
          scarce ? "make room, or set cache.size_max_bytes lower" : ""};
}

Finding check_index(const Session& session) {
  const std::string current = session.config().cache_directory + "/pub/CURRENT";
  std::ifstream file(current);
  std::string name;
  if (!std::getline(file, name)) return {Grade::good, "mapped index", "none yet: the first build makes it", ""};
  return {Grade::good, "mapped index", name, ""};
}

Finding check_program(const std::string& name, const std::string& configured, const std::string& key) {
  const auto path = find_program(name, configured);
  if (path.ok()) return {Grade::good, name, *path, ""};
  return {Grade::bad, name, path.status().message(), "install it beside kiln" + (key.empty() ? "" : ", or set " + key)};
}

Finding check_daemon(Session& session) {
  // Started where none runs: whether that works is what people ask the doctor.
  const auto status = session.ask({.verb = protocol::Verb::status});
  if (!status.ok()) {
    const bool is_wanted = session.config().daemon_use && !session.config().disable;
    return {is_wanted ? Grade::bad : Grade::none, "daemon", status.status().message(), ""};
  }
  const std::string build = status->value("build_id", "");
  const bool same = build == protocol::build_id();
  const auto workers = status->value("workers", size_t{0});
  if (const auto allowed = status->value("workers_memory_allows", workers); same && allowed < workers) {
    return {Grade::warning, "daemon", fmt::format("free memory allows {} builds at once, of {}", allowed, workers),
            "make room, or set worker.memory_expected_bytes lower"};
  }
  return {same ? Grade::good : Grade::warning, "daemon",
          fmt::format("pid {}, {}, {} builds failed", status->value("pid", 0), build,
                      (*status)["counters"].value("builds_failed", 0)),
          same ? "" : "kiln daemon restart: it is of another build than this program"};
}

/// What a backend finds on this host: its devices, and what it looked for.
std::vector<Finding> check_backend(const RuntimeBackend& backend) {
  std::vector<Finding> findings;
  const std::string name(backend.name());
  const Discovery& discovery = backend.discover();
  const bool is_needed = &backend == &host_backend();
  if (!discovery.status.ok()) {
    findings.push_back({is_needed ? Grade::bad : Grade::none, name, discovery.status.message(), ""});
  }
  for (size_t i = 0; i < discovery.devices.size(); ++i) {
    const DeviceDescription& device = discovery.devices[i];
    if (device.targets.empty()) {
      findings.push_back(
          {Grade::none, fmt::format("{}:{}", name, i), device.name + "; runs no code of this build", ""});
      continue;
    }
    std::string targets;
    for (const Target& target : device.targets) targets += (targets.empty() ? "" : ", ") + target.name;
    const std::string& driver = device.targets.front().driver;
    findings.push_back({Grade::good, fmt::format("{}:{}", name, i),
                        fmt::format("{}, {} of memory; runs {}{}", device.name, human_bytes(device.memory_bytes),
                                    targets, driver.empty() ? "" : "; driver " + driver),
                        ""});
  }
  for (const Discovery::Component& component : discovery.components) {
    findings.push_back(
        {component.usable ? Grade::good : Grade::none, name + " " + component.name, component.found, ""});
  }
  return findings;
}

Finding check_python(const Session& session) {
  // The installed versions alone: importing torch takes seconds.
  constexpr const char* k_script =
      "import importlib.metadata as m, importlib.util as u, sys\n"
      "def version(name):\n"
      "  try: return m.version(name)\n"
      "  except m.PackageNotFoundError: return 'here' if u.find_spec(name) else 'none'\n"
      "print('%d.%d.%d, torch %s, kiln %s' % (*sys.version_info[:3], version('torch'), version('kiln')))\n";
  const auto python = find_python(session.config());
  if (!python.ok()) return {Grade::warning, "python", python.status().message(), "only kiln warm --torch needs it"};
  const auto result = run_process({*python, "-c", k_script}, {}, Errors::kept);
  if (!result.ok() || result->exit_status != 0) {
    return {Grade::warning, "python", *python + " does not run", "set python.path"};
  }
  std::string versions = result->output.substr(0, result->output.find('\n'));
  const bool missing = versions.find("none") != std::string::npos;
  return {missing ? Grade::warning : Grade::good, "python", fmt::format("{}: {}", *python, versions),
          missing ? "kiln warm --torch needs torch and kiln there; python.path names another Python" : ""};
}

std::vector<Finding> examine(Session& session) {
  const Config& config = session.config();
  std::vector<Finding> findings = {check_switches(session),
                                   check_configuration(session),
                                   check_cache_directory(session),
                                   check_file_system(session),
                                   check_index(session),
                                   check_program("kilnd", config.daemon_path, "daemon.path"),
                                   check_program("kiln-worker", config.worker_path, "worker.path"),
                                   check_program("kiln-executor", "", ""),
                                   check_program("kiln-device-executor", "", ""),
                                   check_daemon(session),
                                   check_python(session)};
  for (const RuntimeBackend* backend : runtime_backends()) {
    for (Finding& finding : check_backend(*backend)) findings.push_back(std::move(finding));
  }
  return findings;
}

ExitCode doctor(Session& session) {
  const std::vector<Finding> findings = examine(session);
  bool healthy = true;
  Json checks = Json::array();
  Table table({"CHECK", "", "FOUND"});
  for (const Finding& each : findings) {
    healthy = healthy && each.grade != Grade::bad;
    checks.push_back(
        {{"check", each.what}, {"grade", to_string(each.grade)}, {"found", each.found}, {"mend", each.mend}});
    table.add({each.what, std::string(to_string(each.grade)), each.found});
    if (!each.mend.empty()) table.add({"", "", "→ " + each.mend});
  }
  if (session.out().json) {
    session.out().print_json({{"healthy", healthy}, {"checks", checks}});
  } else {
    session.out().print_table(table);
  }
  return healthy ? ExitCode::ok : ExitCode::failure;
}

}  // namespace

Action add_doctor(CommandLine&) { return doctor; }

}  // namespace kiln::cli
