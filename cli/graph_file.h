#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/expected.h"
#include "frontend/ir/graph.h"

namespace kiln::cli {

/// A graph from a file: the text form, or the wire form (which has zero bytes, text has none).
/// Errors: not_found, resource_exhausted for a file beyond the limits, what the reader found; all name the file.
Expected<Graph> read_graph(const std::string& path);

/// "s0=512,s1=4" and so on, several of them. Errors: invalid_argument.
Expected<std::map<std::string, int64_t>> parse_symbols(const std::vector<std::string>& texts);

/// One extent per symbol of the graph, in its order. Errors: invalid_argument, naming the symbol without value, or the
/// name that is no symbol of it.
Expected<std::vector<int64_t>> symbol_values(const Graph& graph, const std::map<std::string, int64_t>& symbols);

/// read_graph's graph with these values of its symbols in their place. Errors: read_graph's and symbol_values'.
Expected<Graph> read_bound_graph(const std::string& path, const std::map<std::string, int64_t>& symbols);

}  // namespace kiln::cli
