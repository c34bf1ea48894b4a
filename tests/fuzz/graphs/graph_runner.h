#pragma once

#include <string>
#include <vector>

#include "base/expected.h"
#include "frontend/ir/graph.h"
#include "jit/build/build.h"
#include "jit/run/program.h"

namespace kiln::fuzz {

/// Artifacts in memory, by digest: what a build returned, with interpreted kernels.
class BuiltArtifacts final : public ArtifactSource {
 public:
  explicit BuiltArtifacts(const BuildResult& result) : m_result(result) {}
  Expected<std::span<const uint8_t>> plan(const Digest& digest) override;
  Expected<std::shared_ptr<const Executable>> executable(const Digest& digest) override;
  Expected<std::span<const uint8_t>> program() const;

 private:
  Expected<const BuiltArtifact*> find(const Digest& digest) const;
  const BuildResult& m_result;
};

/// What came of a graph.
struct Outcome {
  Status status;            // ok; internal for what is wrong; else what the build or the run said
  uint64_t compared = 0;    // elements
  uint64_t determined = 0;  // of these, those whose value says something
};

/// Runs the program on the graph's input_memory() and compares each output with the reference: scratch and outputs
/// poisoned, gaps of strides and what lies around a tensor looked at, inputs unchanged.
Outcome check_program(const Graph& graph, const Program& program, uint32_t threads = 1);

/// Builds the graph in this process with interpreted kernels, which are not judged, links and checks it.
Outcome check_interpreted(const Graph& graph);

}  // namespace kiln::fuzz
