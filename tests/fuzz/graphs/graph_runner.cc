#include "tests/fuzz/graphs/graph_runner.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "cache/format/artifact.h"
#include "frontend/canonical/canonical.h"
#include "frontend/fuse/facts.h"
#include "frontend/fuse/kernels.h"
#include "frontend/kernel/affine.h"
#include "frontend/wire/wire.h"
#include "jit/run/arena.h"
#include "tests/fuzz/graphs/graph_maker.h"
#include "tests/fuzz/graphs/interpreter.h"
#include "tests/fuzz/graphs/reference.h"

namespace kiln::fuzz {
namespace {

// NaN of every floating type, no boolean, and no small integer.
constexpr std::byte k_poison{0xff};
constexpr size_t k_guard_bytes = 64;

/// A tensor in memory of its own, between guards.
class Buffer {
 public:
  explicit Buffer(const TensorLayout& layout) : m_layout(layout) {
    if (m_layout.strides.empty()) m_layout.strides = dense_strides(m_layout.dims);
    m_elements = footprint(m_layout.dims, m_layout.strides);
    m_bytes.assign(static_cast<size_t>(m_elements) * size_of(layout.dtype) + 2 * k_guard_bytes, k_poison);
  }

  std::byte* data() { return m_bytes.data() + k_guard_bytes; }
  const std::byte* data() const { return m_bytes.data() + k_guard_bytes; }
  void fill(const std::vector<std::byte>& content) { std::copy(content.begin(), content.end(), data()); }
  bool holds(const std::vector<std::byte>& content) const { return std::equal(content.begin(), content.end(), data()); }
  double at(int64_t flat) const { return load_element(m_layout.dtype, data(), place(flat)); }

  /// Everything that is no element is as it was.
  bool gaps_intact() const {
    const size_t size = size_of(m_layout.dtype);
    std::vector<bool> used(m_bytes.size(), false);
    for (int64_t flat = 0; flat < product(m_layout.dims); ++flat) {
      const size_t first = k_guard_bytes + static_cast<size_t>(place(flat)) * size;
      std::fill_n(used.begin() + static_cast<ptrdiff_t>(first), size, true);
    }
    for (size_t i = 0; i < m_bytes.size(); ++i) {
      if (!used[i] && m_bytes[i] != k_poison) return false;
    }
    return true;
  }

 private:
  int64_t place(int64_t flat) const { return place_of(flat, m_layout.dims, m_layout.strides); }

  TensorLayout m_layout;
  int64_t m_elements = 0;
  std::vector<std::byte> m_bytes;
};

template <typename... Args>
Status wrong(fmt::format_string<Args...> format, Args&&... args) {
  return error(StatusCode::internal, format, std::forward<Args>(args)...);
}

bool agrees(double got, const Reference::Element& element) {
  if (std::isnan(element.expected)) return std::isnan(got);
  return got == element.expected || std::fabs(got - element.expected) <= element.allowed;
}

Status compare(Reference& reference, size_t output, const Buffer& got, Outcome& outcome) {
  const std::vector<int64_t> indices = reference.demanded(output);
  const std::vector<Reference::Element> elements = reference.elements(output, indices);
  for (size_t i = 0; i < indices.size(); ++i) {
    ++outcome.compared;
    if (!elements[i].is_determined) continue;
    ++outcome.determined;
    const double held = got.at(indices[i]);
    if (agrees(held, elements[i]) || reference.is_possible(output, indices[i], held, elements[i])) continue;
    return wrong("output {}, element {}: {}, expected {} within {}", output, indices[i], held, elements[i].expected,
                 elements[i].allowed);
  }
  return {};
}

/// Where the next call's scratch comes from holds nothing right.
void poison_scratch(const Program& program) {
  const uint64_t bytes = program.scratch_bytes() + (64 << 10);
  if (auto block = ArenaPool::shared().acquire(bytes)) std::memset(block.get(), 0xff, bytes);
}

Status check_outputs(const Graph& graph, const Program& program, const Memory& memory, uint32_t threads,
                     Outcome& outcome) {
  std::vector<Buffer> inputs, outputs;
  std::vector<const void*> sources;
  std::vector<void*> targets;
  for (size_t i = 0; i < memory.size(); ++i) inputs.emplace_back(program.inputs()[i]).fill(memory[i]);
  for (const TensorLayout& layout : program.outputs()) outputs.emplace_back(layout);
  for (const Buffer& buffer : inputs) sources.push_back(buffer.data());
  for (Buffer& buffer : outputs) targets.push_back(buffer.data());
  poison_scratch(program);
  KILN_RETURN_IF_ERROR(program.run(sources, targets, threads));

  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs[i].holds(memory[i])) return wrong("input {} was changed", i);
  }
  KILN_ASSIGN_OR_RETURN(Reference reference, Reference::create(graph, memory));
  for (size_t i = 0; i < outputs.size(); ++i) {
    const uint32_t alias = program.output_alias(i);
    if (alias == k_none && !outputs[i].gaps_intact()) return wrong("output {}: written beside its elements", i);
    const Buffer& got = alias == k_none ? outputs[i] : inputs[alias];
    KILN_RETURN_IF_ERROR(compare(reference, i, got, outcome));
  }
  return reference.status();
}

}  // namespace

Expected<const BuiltArtifact*> BuiltArtifacts::find(const Digest& digest) const {
  for (const BuiltArtifact& artifact : m_result.artifacts) {
    if (artifact.digest == digest) return &artifact;
  }
  return error(StatusCode::not_found, "artifact {}", digest.to_short());
}

Expected<std::span<const uint8_t>> BuiltArtifacts::plan(const Digest& digest) {
  KILN_ASSIGN_OR_RETURN(const BuiltArtifact* artifact, find(digest));
  return std::span<const uint8_t>(artifact->payload);
}

Expected<std::shared_ptr<const Executable>> BuiltArtifacts::executable(const Digest& digest) {
  KILN_ASSIGN_OR_RETURN(const BuiltArtifact* artifact, find(digest));
  return load_interpreted(artifact->payload);
}

Expected<std::span<const uint8_t>> BuiltArtifacts::program() const {
  for (const BuiltArtifact& artifact : m_result.artifacts) {
    if (artifact.kind == KILN_ARTIFACT_PROGRAM) return std::span<const uint8_t>(artifact.payload);
  }
  return error(StatusCode::not_found, "no program among the artifacts");
}

Outcome check_program(const Graph& graph, const Program& program, uint32_t threads) {
  Outcome outcome;
  outcome.status = check_outputs(graph, program, input_memory(graph), threads, outcome);
  return outcome;
}

Outcome check_interpreted(const Graph& graph) {
  forget_interpreted();
  const BuildRequest request{to_wire(graph), {InterpreterBackend::target()}, "/nonexistent"};
  const RunnerFactory no_runner = [](const Target&) -> Expected<std::unique_ptr<CandidateRunner>> {
    return error(StatusCode::not_found, "the interpreter is no device");
  };
  const auto result = build(request, find_backend, {.make_runner = no_runner});
  if (!result.ok()) return {result.status()};
  BuiltArtifacts artifacts(*result);
  const auto bytes = artifacts.program();
  if (!bytes.ok()) return {bytes.status()};
  const auto program = Program::load(*bytes, artifacts);
  if (!program.ok()) return {program.status()};
  return check_program(graph, **program);
}

}  // namespace kiln::fuzz
