#pragma once

#include "frontend/ir/graph.h"
#include "jit/build/build.h"

namespace kiln {

/// build() of a request with sizes: a program for as many sizes around these as one plan serves. The graph is planned for samples
/// of them, with code for any size, and what differs in its numbers alone is linked as one. Why that holds: docs/kernels.md.
/// Errors: as of build(); unimplemented where no such program serves the sizes.
Expected<BuildResult> build_for_sizes(const BuildRequest& request, const Graph& graph,
                                      const BackendFinder& find_backend, const BuildEnvironment& environment);

}  // namespace kiln
