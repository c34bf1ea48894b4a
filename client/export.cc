#include "client/export.h"

#include <filesystem>

#include "backends/devices.h"
#include "base/build_id.h"
#include "frontend/text/text.h"
#include "jit/exported/export_writer.h"
#include "jit/exported/weights.h"

namespace kiln {
namespace {

/// Adds the form's program for the target to it, and to `artifacts` what it is made of.
Status add_program(Client& client, const ExportRequest& request, const ExportRequest::Graph& wanted,
                   const std::string& target, ExportForm& form, std::vector<Artifact>& artifacts) {
  KILN_ASSIGN_OR_RETURN(const Graph graph, parse_text(wanted.text));
  const Client::CompileOptions options{.symbol_values = wanted.symbol_values, .deadline_ms = request.deadline_ms};
  KILN_ASSIGN_OR_RETURN(std::vector<Artifact> made, client.collect(graph, options, target));
  form.programs.push_back({target, artifact_digest(made.front())});
  std::ranges::move(made, std::back_inserter(artifacts));
  return {};
}

}  // namespace

Status write_export(Client& client, const std::string& path, std::string_view json) {
  KILN_ASSIGN_OR_RETURN(ExportRequest request, request_from_json(json));
  ExportManifest& manifest = request.manifest;
  manifest.generator = generator_build_id(host_backend().name());
  manifest.program_version = k_program_version;
  const std::string folder = std::filesystem::path(path).parent_path();
  KILN_ASSIGN_OR_RETURN(manifest.weights, describe_weights(folder.empty() ? "." : folder, manifest.weights.file));
  if (request.targets.empty()) request.targets = {client.device().targets.front().name};
  std::vector<Artifact> artifacts;
  for (size_t i = 0; i < manifest.forms.size(); ++i) {
    for (const std::string& target : request.targets) {
      KILN_RETURN_IF_ERROR(add_program(client, request, request.graphs[i], target, manifest.forms[i], artifacts));
    }
  }
  return write_export(path, manifest, std::move(artifacts));
}

}  // namespace kiln
