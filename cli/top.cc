// kiln top: what the daemon builds and tunes, drawn again each second on a terminal, once elsewhere.

#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#include "base/printable.h"
#include "cli/command.h"
#include "client/terminal/text.h"

namespace kiln::cli {
namespace {

constexpr auto k_interval = std::chrono::seconds(1);
constexpr const char* k_home_and_clear = "\x1b[H\x1b[J";

/// "verify 3/12  gemm_f32_…", or "-" where nothing has been said yet.
std::string step_of(const Json& progress) {
  if (!progress.is_object()) return "-";
  return fmt::format("{} {}/{}  {}", progress.value("stage", ""), progress.value("done", uint64_t{0}),
                     progress.value("total", uint64_t{0}), progress.value("item", ""));
}

std::string tuning_of(const Json& status) {
  if (status.value("tuning", Json()).is_object()) return step_of(status["tuning"]);
  return status.value("has_untuned", false) ? "waits until the machine has nothing else to do" : "nothing to do";
}

void print(const Session& session, const Json& status) {
  const Json& counters = status["counters"];
  session.out().print_pairs(
      {{"daemon",
        fmt::format("pid {}, up {}", status.value("pid", 0), human_duration(status.value("uptime_ms", uint64_t{0})))},
       {"builds", fmt::format("{} running, {} queued, {} done", status.value("builds_running", 0),
                              status.value("builds_queued", 0), counters.value("builds_done", 0))},
       {"tuning", escaped(tuning_of(status))},
       {"tuned", fmt::format("{} kernels in the background", counters.value("kernels_tuned", 0))}});
  Table table({"BUILD", "STATE", "CLIENTS", "STEP", "NAME"});
  for (const Json& job : status["jobs"]) {
    table.add({job.value("key", "").substr(0, 12), job.value("running", false) ? "running" : "queued",
               std::to_string(job.value("waiting_clients", 0)), step_of(job.value("progress", Json())),
               job.value("name", "")});
  }
  if (table.rows() > 0) session.out().print_table(table);
}

ExitCode run_top(Session& session, bool once) {
  const bool redraws = !once && !session.out().json && isatty(STDOUT_FILENO) == 1;
  for (;;) {
    KILN_CLI_ASSIGN(session, Json status, session.ask({.verb = protocol::Verb::status}, Session::Start::never));
    if (session.out().json) {
      session.out().print_json(std::move(status));
      return ExitCode::ok;
    }
    if (redraws) std::fputs(k_home_and_clear, stdout);
    print(session, status);
    if (!redraws) return ExitCode::ok;
    std::fflush(stdout);
    std::this_thread::sleep_for(k_interval);
  }
}

}  // namespace

Action add_top(CommandLine& line) {
  auto once = std::make_shared<bool>(false);
  line.flag("--once", *once, "Print what is now, and leave");
  return [once](Session& session) { return run_top(session, *once); };
}

}  // namespace kiln::cli
