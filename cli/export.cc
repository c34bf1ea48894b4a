// kiln export: a torch module as a file that C, C++ and Python run without torch, and its weights beside it.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cli/command.h"
#include "cli/process.h"
#include "cli/warm_torch.h"
#include "client/terminal/text.h"

namespace kiln::cli {
namespace {

struct ExportOptions {
  std::string source, output;
  std::vector<std::string> targets;
};

/// Runs the configured Python on kiln.exporter (client/python/kiln/exporter.py), whose stderr is this program's.
Expected<Json> export_module(const Session& session, const ExportOptions& options) {
  KILN_RETURN_IF_ERROR(check_module_function(options.source));
  KILN_ASSIGN_OR_RETURN(const std::string python, find_python(session.config()));
  std::vector<std::string> arguments = {python, "-m", "kiln.exporter", options.source, "--output", options.output};
  if (!options.targets.empty()) {
    arguments.insert(arguments.end(), {"--target", fmt::format("{}", fmt::join(options.targets, ","))});
  }
  session.out().note(fmt::format("running {} with {}", options.source, python));
  KILN_ASSIGN_OR_RETURN(const ProcessResult result, run_process(arguments, configuration_variables(session.loaded())));
  Json written = Json::parse(result.output, nullptr, false);
  if (result.exit_status == 0 && written.is_object()) return written;
  return error(StatusCode::unknown, "{} is not exported: {} left with {}; its words are above", options.source, python,
               result.exit_status);
}

ExitCode run_export(Session& session, const ExportOptions& options) {
  auto exported = export_module(session, options);
  if (exported.status().code() == StatusCode::invalid_argument) {
    session.out().error(exported.status(), "kiln export --help says what there is");
    return ExitCode::usage;
  }
  KILN_CLI_ASSIGN(session, const Json written, std::move(exported));
  if (session.out().json) {
    session.out().print_json({{"source", options.source}, {"export", written}});
  } else {
    session.out().print_pairs({{"export", written.value("file", "")},
                               {"bytes", human_bytes(written.value("bytes", uint64_t{0}))},
                               {"weights", written.value("weights", "")},
                               {"bytes of weights", human_bytes(written.value("weights_bytes", uint64_t{0}))},
                               {"forms", written.value("forms", Json(0)).dump()},
                               {"runs here as", written.value("target", "")}});
  }
  return ExitCode::ok;
}

}  // namespace

Action add_export(CommandLine& line) {
  auto options = std::make_shared<ExportOptions>();
  line.option("MODULE", options->source,
              "module:function, a Python function that returns a torch module and its example inputs: a tuple, a dict, "
              "or a list of these",
              {.is_required = true});
  line.option("-o,--output", options->output, "File to write; its weights lie beside it",
              {.name = "FILE", .is_required = true});
  line.option("--target", options->targets,
              "Targets whose kernels it has, of those this host runs; without it the best",
              {.name = "NAME", .delimiter = ','});
  return [options](Session& session) { return run_export(session, *options); };
}

}  // namespace kiln::cli
