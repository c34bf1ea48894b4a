#pragma once

#include <string>
#include <string_view>

#include "base/expected.h"
#include "frontend/ir/graph.h"

namespace kiln {

/// Reads a graph in the text form (docs/text_form.md). Result types are inferred; annotations are compared
/// with what was inferred. Text is untrusted: every bound of base/limits.h holds and the depth of recursion
/// does not depend on it.
///
/// Errors: invalid_argument or resource_exhausted, "line:column: what was expected, what was found", with the
/// nearest name where one is misspelt.
/// Cost: linear; about a microsecond for each operand.
Expected<Graph> parse_text(std::string_view text);

struct PrintOptions {
  bool result_types = false;  // %h: f32[8, 8] = …, for people
};

/// The graph in the text form. print_text(*parse_text(print_text(g))) == print_text(g), byte for byte. Names
/// are kept where they are well formed and unique; other values are numbered in the order of their
/// definition.
std::string print_text(const Graph& graph, PrintOptions options = {});

}  // namespace kiln
