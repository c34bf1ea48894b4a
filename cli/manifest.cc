#include "cli/manifest.h"

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "base/limits.h"
#include "base/nearest.h"

namespace kiln::cli {
namespace {

/// One file's; its nodes know their lines.
class Reader {
 public:
  explicit Reader(const std::string& path) : m_path(path), m_folder(std::filesystem::path(path).parent_path()) {}

  Expected<Manifest> read(const YAML::Node& root) const {
    Manifest manifest;
    KILN_RETURN_IF_ERROR(check_keys(root, {"targets", "graphs", "models"}));
    KILN_ASSIGN_OR_RETURN(manifest.targets, words(root["targets"]));
    for (const YAML::Node& each : root["graphs"]) KILN_RETURN_IF_ERROR(add_graph(each, manifest));
    for (const YAML::Node& each : root["models"]) KILN_RETURN_IF_ERROR(add_model(each, manifest));
    if (manifest.graphs.empty() && manifest.models.empty()) return wrong(root, "neither graphs nor models are in it");
    return manifest;
  }

 private:
  template <typename... Arguments>
  Status wrong(const YAML::Node& node, fmt::format_string<Arguments...> format, Arguments&&... arguments) const {
    const std::string what = fmt::format(format, std::forward<Arguments>(arguments)...);
    return invalid_argument("{}:{}: {}", m_path, node.Mark().line + 1, what);
  }

  Status check_keys(const YAML::Node& node, const std::vector<std::string_view>& known) const {
    if (!node.IsMap()) return wrong(node, "expected a map with {}", known.front());
    for (const auto& entry : node) {
      const auto name = entry.first.as<std::string>();
      if (std::ranges::find(known, name) != known.end()) continue;
      const std::string_view nearest = nearest_name(name, known);
      return wrong(entry.first, "unknown key '{}'{}", name.substr(0, 64),
                   nearest.empty() ? "" : fmt::format(", the nearest is '{}'", nearest));
    }
    return {};
  }

  Expected<std::vector<std::string>> words(const YAML::Node& node) const {
    if (!node) return std::vector<std::string>{};
    if (!node.IsSequence()) return wrong(node, "expected a list");
    return node.as<std::vector<std::string>>();
  }

  Expected<std::string> word(const YAML::Node& node, const char* key) const {
    if (!node[key] || !node[key].IsScalar()) return wrong(node, "'{}' is missing", key);
    return node[key].as<std::string>();
  }

  Status check_size(const YAML::Node& node, const Manifest& manifest) const {
    if (manifest.graphs.size() + manifest.models.size() < limits::k_queued_jobs) return {};
    return error(StatusCode::resource_exhausted, "{}:{}: more than {} graphs and models in all their sizes", m_path,
                 node.Mark().line + 1, limits::k_queued_jobs);
  }

  Status add_graph(const YAML::Node& node, Manifest& manifest) const {
    KILN_RETURN_IF_ERROR(check_keys(node, {"file", "symbols", "tune"}));
    KILN_ASSIGN_OR_RETURN(const std::string file, word(node, "file"));
    Manifest::GraphOfSize graph{.file = (m_folder / file).string(), .tune = node["tune"] && node["tune"].as<bool>()};
    const YAML::Node sizes = node["symbols"];
    if (sizes && !sizes.IsSequence()) return wrong(sizes, "expected a list, with a map of extents for each size");
    for (size_t i = 0; i < (sizes ? sizes.size() : 1); ++i) {
      KILN_RETURN_IF_ERROR(check_size(node, manifest));
      if (sizes) graph.symbols = sizes[i].as<std::map<std::string, int64_t>>();
      manifest.graphs.push_back(graph);
    }
    return {};
  }

  Status add_model(const YAML::Node& node, Manifest& manifest) const {
    KILN_RETURN_IF_ERROR(check_keys(node, {"source", "modes", "shapes", "whole"}));
    WarmTorch model{.whole = node["whole"] && node["whole"].as<bool>()};
    KILN_ASSIGN_OR_RETURN(model.source, word(node, "source"));
    KILN_ASSIGN_OR_RETURN(std::vector<std::string> modes, words(node["modes"]));
    if (modes.empty()) modes = {"infer"};
    const YAML::Node shapes = node["shapes"];
    if (shapes && !shapes.IsSequence()) return wrong(shapes, "expected a list, with a map of numbers for each shape");
    for (const std::string& mode : modes) {
      if (mode != "infer" && mode != "train") return wrong(node["modes"], "mode '{}' is neither infer nor train", mode);
      model.train = mode == "train";
      for (size_t i = 0; i < (shapes ? shapes.size() : 1); ++i) {
        KILN_RETURN_IF_ERROR(check_size(node, manifest));
        if (shapes) model.shape = shapes[i].as<std::map<std::string, int64_t>>();
        manifest.models.push_back(model);
      }
    }
    return {};
  }

  std::string m_path;
  std::filesystem::path m_folder;
};

}  // namespace

bool is_manifest(const std::string& path) { return path.ends_with(".yaml") || path.ends_with(".yml"); }

Expected<Manifest> read_manifest(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return error(StatusCode::not_found, "{} cannot be read", path);
  std::string text(limits::k_config_bytes + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(file.gcount()));
  if (text.size() > limits::k_config_bytes)
    return error(StatusCode::resource_exhausted, "{} has more than {} bytes", path, limits::k_config_bytes);
  try {
    return Reader(path).read(YAML::Load(text));
  } catch (const YAML::Exception& problem) {  // yaml-cpp reports by exceptions; they end here
    return invalid_argument("{}:{}: {}", path, problem.mark.line + 1, problem.msg);
  }
}

}  // namespace kiln::cli
