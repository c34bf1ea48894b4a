#include "cli/graph_file.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "base/limits.h"
#include "base/nearest.h"
#include "base/split.h"
#include "frontend/infer/bind_symbols.h"
#include "frontend/text/text.h"
#include "frontend/wire/wire.h"

namespace kiln::cli {
namespace {

Expected<std::string> read_file(const std::string& path) {
  std::error_code failure;
  if (std::filesystem::is_directory(path, failure)) return invalid_argument("{} is a folder, expected a graph", path);
  std::ifstream file(path, std::ios::binary);
  if (!file) return error(StatusCode::not_found, "{}: {}", path, std::strerror(errno));
  // Pipes have no size: read, and stop beyond the limit.
  std::string text;
  std::vector<char> block(size_t{1} << 20);
  while (file.read(block.data(), static_cast<std::streamsize>(block.size())) || file.gcount() > 0) {
    text.append(block.data(), static_cast<size_t>(file.gcount()));
    if (text.size() > limits::k_frame_bytes) {
      return error(StatusCode::resource_exhausted, "{} has more than {} bytes", path, limits::k_frame_bytes);
    }
  }
  return text;
}

}  // namespace

Expected<Graph> read_graph(const std::string& path) {
  KILN_ASSIGN_OR_RETURN(const std::string content, read_file(path));
  const auto* bytes = reinterpret_cast<const uint8_t*>(content.data());
  const bool is_wire = content.find('\0') != std::string::npos;
  Expected<Graph> graph = is_wire ? from_wire({bytes, content.size()}) : parse_text(content);
  if (!graph.ok()) return graph.status().with_context(path);
  return graph;
}

Expected<std::map<std::string, int64_t>> parse_symbols(const std::vector<std::string>& texts) {
  std::map<std::string, int64_t> symbols;
  for (const std::string& text : texts) {
    for (const std::string_view one : split(text, ',')) {
      const size_t equals = std::min(one.find('='), one.size());
      const std::string_view number = one.substr(std::min(equals + 1, one.size()));
      int64_t extent = -1;
      const auto [end, code] = std::from_chars(number.data(), number.data() + number.size(), extent);
      if (equals == 0 || code != std::errc() || end != number.data() + number.size() || extent < 0) {
        return invalid_argument("--symbols {}: expected name=extent", one.substr(0, 64));
      }
      symbols[std::string(one.substr(0, equals))] = extent;
    }
  }
  return symbols;
}

Expected<std::vector<int64_t>> symbol_values(const Graph& graph, const std::map<std::string, int64_t>& symbols) {
  for (const auto& [name, extent] : symbols) {
    if (std::find(graph.symbols().begin(), graph.symbols().end(), name) != graph.symbols().end()) continue;
    const std::string_view nearest = nearest_name(name, graph.symbols());
    return invalid_argument("the graph has no symbol {}{}", name,
                            nearest.empty() ? "" : fmt::format(", the nearest is {}", nearest));
  }
  std::vector<int64_t> values;
  for (const std::string& name : graph.symbols()) {
    const auto found = symbols.find(name);
    if (found == symbols.end()) return invalid_argument("symbol {} has no value: --symbols {}=…", name, name);
    values.push_back(found->second);
  }
  return values;
}

Expected<Graph> read_bound_graph(const std::string& path, const std::map<std::string, int64_t>& symbols) {
  KILN_ASSIGN_OR_RETURN(const Graph graph, read_graph(path));
  KILN_ASSIGN_OR_RETURN(const auto extents, symbol_values(graph, symbols));
  return bind_symbols(graph, extents);
}

}  // namespace kiln::cli
