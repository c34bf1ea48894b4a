// kiln status: works without a daemon too, and then says so.

#include <fmt/format.h>

#include <string>
#include <utility>
#include <vector>

#include "base/config/directories.h"
#include "cli/command.h"
#include "client/terminal/text.h"

namespace kiln::cli {
namespace {

void print_jobs(const Session& session, const Json& jobs) {
  Table table({"BUILD", "STATE", "WAITING", "TARGETS", "NAME"});
  for (const Json& job : jobs) {
    std::string targets;
    for (const Json& target : job["targets"]) targets += (targets.empty() ? "" : ", ") + target.get<std::string>();
    table.add({job.value("key", "").substr(0, 12), job.value("running", false) ? "running" : "queued",
               std::to_string(job.value("waiting_clients", 0)), targets, job.value("name", "")});
  }
  if (table.rows() > 0) session.out().print_table(table);
}

/// What is refused for a while, since it killed workers.
void print_quarantine(const Session& session, const Json& quarantined) {
  Table table({"QUARANTINED", "FOR", "NAME", "WHY"});
  for (const Json& each : quarantined) {
    table.add({each.value("key", "").substr(0, 12), human_duration(each.value("left_ms", uint64_t{0})),
               each.value("name", ""), each.value("why", "")});
  }
  if (table.rows() > 0) session.out().print_table(table);
}

/// "8", or "8, of which free memory allows 3"
std::string workers_of(const Json& status) {
  const auto workers = status.value("workers", size_t{0}), allowed = status.value("workers_memory_allows", workers);
  return fmt::format("{}{}", workers,
                     allowed < workers ? fmt::format(", of which free memory allows {}", allowed) : "");
}

ExitCode print_running(const Session& session, Json status) {
  status["running"] = true;
  if (session.out().json) {
    session.out().print_json(std::move(status));
    return ExitCode::ok;
  }
  const Json& counters = status["counters"];
  std::vector<std::pair<std::string, std::string>> pairs = {
      {"daemon", fmt::format("running, pid {}, up {}{}", status.value("pid", 0),
                             human_duration(status.value("uptime_ms", uint64_t{0})),
                             status.value("draining", false) ? ", leaving" : "")},
      {"build", status.value("build_id", "")},
      {"cache", status.value("cache_directory", "")},
      {"socket", status.value("socket", "")},
      {"clients", std::to_string(status.value("connections", 0))},
      {"workers", workers_of(status)},
      {"builds", fmt::format("{} running, {} queued, {} done, {} failed", status.value("builds_running", 0),
                             status.value("builds_queued", 0), counters.value("builds_done", 0),
                             counters.value("builds_failed", 0))},
      {"compilations", std::to_string(counters.value("compilations", 0))},
      {"quarantined", fmt::format("{} keys", status.value("keys_quarantined", 0))},
  };
  if (const Json& fleet = status["fleet"]; fleet.is_object()) {
    pairs.emplace_back(
        "fleet", fmt::format("{} entries found, {} refused, {} accepted, {} rejected, {} written; {} searches failed",
                             fleet.value("entries_found", 0), fleet.value("entries_refused", 0),
                             fleet.value("entries_accepted", 0), fleet.value("entries_rejected", 0),
                             fleet.value("entries_written", 0), fleet.value("searches_failed", 0)));
  }
  session.out().print_pairs(pairs);
  print_jobs(session, status["jobs"]);
  print_quarantine(session, status["quarantined"]);
  return ExitCode::ok;
}

ExitCode print_absent(const Session& session, const Status& why, bool required) {
  if (required) return session.fail(why);
  const std::string cache = canonical_path(session.config().cache_directory);
  const std::string socket = socket_path(cache).ok() ? *socket_path(cache) : "";
  if (session.out().json) {
    session.out().print_json(
        {{"running", false}, {"reason", why.message()}, {"cache_directory", cache}, {"socket", socket}});
  } else {
    session.out().print_pairs({{"daemon", "not running: " + why.message()}, {"cache", cache}, {"socket", socket}});
    session.out().note("clients start a daemon when they need one; kiln daemon start does it now");
  }
  return ExitCode::ok;
}

}  // namespace

Action add_status(CommandLine& line) {
  auto required = std::make_shared<bool>(false);
  line.flag("--require", *required, "Exit with 3 when no daemon runs");
  return [required](Session& session) {
    auto status = session.ask({.verb = protocol::Verb::status}, Session::Start::never);
    if (status.ok()) return print_running(session, std::move(*status));
    if (status.status().code() != StatusCode::unavailable) return session.fail(status.status());
    return print_absent(session, status.status(), *required);
  };
}

}  // namespace kiln::cli
