#pragma once

#include <vector>

#include "frontend/ir/graph.h"

namespace kiln {

/// The nodes that make the scores of an attention_of_scores in one kernel with it, in their order: an attention_scores, what
/// changes its elements one by one, and last the attention itself. `end` is the first or the last of them. Empty where a value
/// in between is used otherwise, or where the scores come from elsewhere. A composite of one result counts as what changes
/// elements one by one: what it is taken apart into shows whether it does.
std::vector<NodeId> score_path(const Graph& graph, NodeId end);

}  // namespace kiln
