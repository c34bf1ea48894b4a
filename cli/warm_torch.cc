#include "cli/warm_torch.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cli/process.h"
#include "client/terminal/text.h"

namespace kiln::cli {
namespace {

void print_counters(const Session& session, const Json& stats) {
  session.out().print_pairs({
      {"graphs", stats.value("graphs", Json(0)).dump()},
      {"nodes compiled", stats.value("nodes_compiled", Json(0)).dump()},
      {"nodes in torch", stats.value("nodes_fallback", Json(0)).dump()},
      {"regions", stats.value("regions", Json(0)).dump()},
      {"compilations", stats.value("compilations", Json(0)).dump()},
      {"mapped hits", stats.value("hits_mapped", Json(0)).dump()},
      {"misses", stats.value("misses", Json(0)).dump()},
      {"seconds", stats.value("seconds", Json(0)).dump()},
  });
  const Json targets = stats.value("targets", Json::object());
  for (const auto& [target, nodes] : targets.items()) {
    session.out().note(fmt::format("{}: {} nodes compiled, {} left to torch", target,
                                   nodes.value("nodes_compiled", Json(0)).dump(),
                                   nodes.value("nodes_left", Json(0)).dump()));
  }
  const Json fallback = stats.value("fallback_ops", Json::object());
  for (const auto& [op, count] : fallback.items()) {
    session.out().note(fmt::format("left to torch: {} x {}", count.dump(), op));
  }
}

}  // namespace

Status check_module_function(const std::string& source) {
  const size_t colon = source.find(':');
  if (colon != 0 && colon != std::string::npos && colon + 1 != source.size()) return {};
  return invalid_argument(
      "'{}' is not module:function; the function returns a torch module and its example inputs, a tuple or a dict",
      source);
}

std::vector<std::pair<std::string, std::string>> configuration_variables(const LoadedConfig& loaded) {
  std::vector<std::pair<std::string, std::string>> variables;
  for (const ConfigKey& key : config_keys()) {
    const ConfigLayer layer = loaded.origins.at(std::string(key.name)).layer;
    if (layer == ConfigLayer::flag) variables.emplace_back(environment_name(key.name), value_text(loaded.values, key));
  }
  return variables;
}

Expected<Json> run_module(const Session& session, const WarmTorch& options,
                          const std::vector<std::pair<std::string, std::string>>& variables, int* exit_status) {
  KILN_RETURN_IF_ERROR(check_module_function(options.source));
  KILN_ASSIGN_OR_RETURN(const std::string python, find_python(session.config()));
  std::vector<std::string> arguments = {python, "-m", "kiln.warm", options.source};
  if (options.train) arguments.emplace_back("--train");
  if (options.whole) arguments.emplace_back("--whole");
  if (!options.targets.empty()) {
    arguments.insert(arguments.end(), {"--target", fmt::format("{}", fmt::join(options.targets, ","))});
  }
  if (!options.shape.empty()) arguments.insert(arguments.end(), {"--shape", Json(options.shape).dump()});
  session.out().note(fmt::format("running {} with {}", options.source, python));
  KILN_ASSIGN_OR_RETURN(const ProcessResult result, run_process(arguments, variables));
  if (exit_status != nullptr) *exit_status = result.exit_status;
  Json stats = Json::parse(result.output, nullptr, false);
  if (stats.is_object()) return stats;
  return error(StatusCode::unknown, "{} -m kiln.warm {} left with {} and no answer; its words are above", python,
               options.source, result.exit_status);
}

ExitCode exit_code_of_module(int exit_status) {
  if (exit_status == 0) return ExitCode::ok;
  return exit_status == static_cast<int>(ExitCode::partial) ? ExitCode::partial : ExitCode::failure;
}

ExitCode warm_torch(Session& session, const WarmTorch& options) {
  int exit_status = 0;
  auto ran = run_module(session, options, configuration_variables(session.loaded()), &exit_status);
  if (ran.status().code() == StatusCode::invalid_argument) {
    session.out().error(ran.status(), "kiln warm --help says what there is");
    return ExitCode::usage;
  }
  KILN_CLI_ASSIGN(session, const Json stats, std::move(ran));
  if (session.out().json) {
    session.out().print_json({{"source", options.source}, {"stats", stats}});
  } else {
    print_counters(session, stats);
  }
  return exit_code_of_module(exit_status);
}

}  // namespace kiln::cli
