#include "jit/build/link/artifact_writer.h"

#include <algorithm>
#include <cassert>
#include <unordered_map>

#include "backends/schedule_bytes.h"
#include "base/ceil_div.h"
#include "cache/format/artifact_bytes.h"
#include "frontend/kernel/overwrites.h"
#include "jit/build/link/memory_planner.h"
#include "jit/run/program.h"
#include "jit/run/program_generated.h"

namespace kiln {

namespace {

fb::ArtifactDigest to_stored(const Digest& digest) { return fb::ArtifactDigest(digest.bytes); }

int64_t element_count(const TensorType& type) {
  int64_t count = 1;
  for (const Dim& dim : type.shape) count *= dim.constant();
  return count;
}

BuiltArtifact finish(ArtifactKind kind, const flatbuffers::FlatBufferBuilder& builder) {
  const uint8_t* first = builder.GetBufferPointer();
  return named_artifact(kind, {}, std::vector<uint8_t>(first, first + builder.GetSize()));
}

/// First and last step that touches each of `count` buffers, as `visit(step, mark)` tells; never touched:
/// step 0.
class LifetimeRecorder {
 public:
  explicit LifetimeRecorder(size_t count) : m_lifetimes(count), m_seen(count, false) {}

  void touch(size_t buffer, uint32_t step) {
    if (!m_seen[buffer]) m_lifetimes[buffer].first = step;
    m_seen[buffer] = true;
    m_lifetimes[buffer].last = std::max(m_lifetimes[buffer].last, step);
  }
  void set_bytes(size_t buffer, uint64_t bytes) { m_lifetimes[buffer].bytes = bytes; }
  const std::vector<Lifetime>& lifetimes() const { return m_lifetimes; }

 private:
  std::vector<Lifetime> m_lifetimes;
  std::vector<bool> m_seen;
};

flatbuffers::Offset<flatbuffers::Vector<flatbuffers::Offset<fb::SizedNumber>>> write_numbers(
    flatbuffers::FlatBufferBuilder& builder, const std::vector<SizedNumber>& numbers) {
  std::vector<flatbuffers::Offset<fb::SizedNumber>> stored;
  for (const SizedNumber& number : numbers) {
    std::vector<flatbuffers::Offset<fb::Term>> terms;
    for (const Dim::Term& term : number.value.terms())
      terms.push_back(fb::CreateTerm(builder, term.coefficient, builder.CreateVector(term.symbols)));
    stored.push_back(fb::CreateSizedNumber(builder, number.before_end, builder.CreateVector(terms)));
  }
  return builder.CreateVector(stored);
}

}  // namespace

MemoryPlan scratch_of(const Plan& plan) {
  LifetimeRecorder recorder(plan.buffers.size());
  for (uint32_t step = 0; step < plan.launches.size(); ++step) {
    for (uint32_t buffer : plan.launches[step].buffers) recorder.touch(buffer, step);
  }
  for (size_t i = 0; i < plan.buffers.size(); ++i) {
    const PlanBuffer& buffer = plan.buffers[i];
    if (buffer.kind == BufferKind::temporary) recorder.set_bytes(i, buffer.bytes());
  }
  return plan_memory(recorder.lifetimes());
}

std::vector<std::string> kernel_names(const Plan& plan) {
  std::vector<std::string> names;
  for (const KernelSpec& spec : plan.specs) names.push_back(kernel_name(spec));
  return names;
}

namespace {

flatbuffers::Offset<fb::Tensor> write_layout(flatbuffers::FlatBufferBuilder& builder, const TensorType& type,
                                             const std::vector<Dim>& strides) {
  const auto dims = builder.CreateVector(constants(type.shape));
  const auto stored_strides = builder.CreateVector(constants(strides));
  return fb::CreateTensor(builder, static_cast<uint8_t>(type.dtype), dims, stored_strides);
}

/// A buffer of a plan that is argument `index` of a call.
flatbuffers::Offset<fb::Buffer> write_argument(flatbuffers::FlatBufferBuilder& builder, fb::Place place, uint32_t index,
                                               const TensorType& type, const std::vector<Dim>& strides) {
  return fb::CreateBuffer(builder, place, index, 0, 0, write_layout(builder, type, strides));
}

/// Where each value of a graph lies in its program.
class ProgramBuffers {
 public:
  explicit ProgramBuffers(const ProgramDescription& description) : m_description(description) {
    const Graph& graph = description.graph;
    for (uint32_t i = 0; i < graph.inputs().size(); ++i) add(graph.inputs()[i], fb::Place::input, i);
    for (uint32_t i = 0; i < graph.outputs().size(); ++i) add(graph.outputs()[i], fb::Place::output, i);
    for (const ProgramCall& call : description.calls) {
      for (ValueId value : call.outputs) add(value, fb::Place::scratch, 0);
    }
  }

  uint32_t index_of(ValueId value) const { return m_index.at(value); }

  /// Of what is between regions; the rest gets no place.
  MemoryPlan scratch() const {
    LifetimeRecorder recorder(m_placed.size());
    for (uint32_t step = 0; step < m_description.calls.size(); ++step) {
      const ProgramCall& call = m_description.calls[step];
      for (ValueId value : call.inputs) recorder.touch(index_of(value), step);
      for (ValueId value : call.outputs) recorder.touch(index_of(value), step);
    }
    for (size_t i = 0; i < m_placed.size(); ++i) {
      if (m_placed[i].place == fb::Place::scratch) recorder.set_bytes(i, m_placed[i].bytes);
    }
    return plan_memory(recorder.lifetimes());
  }

  std::vector<flatbuffers::Offset<fb::Buffer>> write(flatbuffers::FlatBufferBuilder& builder,
                                                     const MemoryPlan& scratch) const {
    std::vector<flatbuffers::Offset<fb::Buffer>> stored;
    for (size_t i = 0; i < m_placed.size(); ++i) {
      const Placed& placed = m_placed[i];
      const TensorType& type = m_description.graph.type(placed.value);
      const bool is_scratch = placed.place == fb::Place::scratch;
      const auto tensor = is_scratch ? write_layout(builder, type, type.strides) : 0;
      const uint64_t offset = is_scratch ? scratch.offsets[i] : 0;
      stored.push_back(fb::CreateBuffer(builder, placed.place, placed.index, offset, placed.bytes, tensor));
    }
    return stored;
  }

 private:
  struct Placed {
    ValueId value;
    fb::Place place;
    uint32_t index;
    uint64_t bytes = 0;
  };

  /// The first place wins: an output that is an input stays the input's.
  void add(ValueId value, fb::Place place, uint32_t index) {
    if (!m_index.try_emplace(value, static_cast<uint32_t>(m_placed.size())).second) return;
    const TensorType& type = m_description.graph.type(value);
    m_placed.push_back({value, place, index, static_cast<uint64_t>(element_count(type)) * size_of(type.dtype)});
  }

  const ProgramDescription& m_description;
  std::vector<Placed> m_placed;
  std::unordered_map<ValueId, uint32_t> m_index;
};

/// Outputs that are an input: nothing writes them.
std::vector<flatbuffers::Offset<fb::Alias>> write_aliases(flatbuffers::FlatBufferBuilder& builder, const Graph& graph) {
  std::vector<flatbuffers::Offset<fb::Alias>> aliases;
  for (uint32_t output = 0; output < graph.outputs().size(); ++output) {
    const Value& value = graph.value(graph.outputs()[output]);
    if (value.producer == k_none) aliases.push_back(fb::CreateAlias(builder, output, value.result_index));
  }
  return aliases;
}

}  // namespace

BuiltArtifact plan_artifact(const Plan& plan, uint32_t input_count, std::span<const KernelChoice> kernels,
                            uint32_t choice_generation, const ManySizes* many) {
  assert(kernels.size() == plan.specs.size());
  flatbuffers::FlatBufferBuilder builder;
  const MemoryPlan scratch = many != nullptr ? many->scratch : scratch_of(plan);

  std::vector<uint8_t> constant_bytes;
  std::vector<flatbuffers::Offset<fb::Buffer>> buffers;
  for (size_t i = 0; i < plan.buffers.size(); ++i) {
    const PlanBuffer& buffer = plan.buffers[i];
    switch (buffer.kind) {
      case BufferKind::input:
        buffers.push_back(write_argument(builder, fb::Place::input, buffer.index,
                                         plan.region.type(plan.region.inputs()[buffer.index]),
                                         plan.region.type(plan.region.inputs()[buffer.index]).strides));
        break;
      case BufferKind::output:
        buffers.push_back(write_argument(builder, fb::Place::output, input_count + buffer.index,
                                         plan.region.type(plan.region.outputs()[buffer.index]),
                                         plan.region.output_strides()[buffer.index]));
        break;
      case BufferKind::temporary:
        buffers.push_back(fb::CreateBuffer(builder, fb::Place::scratch, 0, scratch.offsets[i], buffer.bytes()));
        break;
      case BufferKind::constant: {
        const std::vector<uint8_t>& data = plan.constants[buffer.index];
        constant_bytes.resize(round_up(constant_bytes.size(), 64));
        buffers.push_back(fb::CreateBuffer(builder, fb::Place::constant, 0, constant_bytes.size(), data.size()));
        constant_bytes.insert(constant_bytes.end(), data.begin(), data.end());
        break;
      }
    }
  }

  std::vector<fb::ArtifactDigest> stored_codes;
  for (const KernelChoice& kernel : kernels) stored_codes.push_back(to_stored(kernel.code));
  const auto names = builder.CreateVectorOfStrings(many != nullptr ? many->names : kernel_names(plan));
  std::vector<flatbuffers::Offset<fb::Launch>> launches;
  for (const Launch& launch : plan.launches) {
    std::vector<uint8_t> roles;
    for (const BufferSpec& buffer : plan.specs[launch.spec].buffers) roles.push_back(static_cast<uint8_t>(buffer.role));
    std::vector<flatbuffers::Offset<fb::Alias>> pairs;
    for (const Overwrite& pair : overwrites(plan.specs[launch.spec])) {
      pairs.push_back(fb::CreateAlias(builder, pair.output, pair.input));
    }
    const auto stored_pairs = builder.CreateVector(pairs);
    const auto stored_buffers = builder.CreateVector(launch.buffers);
    const std::vector<int64_t>& extents = kernels[launch.spec].extents;
    const auto stored_extents = extents.empty() ? 0 : builder.CreateVector(extents);
    launches.push_back(fb::CreateLaunch(builder, launch.spec, stored_buffers, builder.CreateVector(roles),
                                        stored_extents, stored_pairs));
  }
  builder.ForceVectorAlignment(constant_bytes.size(), 1, 16);
  const auto stored_constants = builder.CreateVector(constant_bytes);
  const auto choices = choice_generation > 0 ? builder.CreateVector(encode_choices(plan.choices)) : 0;
  const auto codes = builder.CreateVectorOfStructs(stored_codes);
  const auto stored_buffers = builder.CreateVector(buffers);
  const auto stored_launches = builder.CreateVector(launches);
  // Last, since they say where the others lie: in bytes before the end.
  const auto numbers = many != nullptr ? write_numbers(builder, many->numbers) : 0;
  builder.Finish(fb::CreatePlan(
      builder, k_program_version, codes, names, stored_buffers, stored_launches, scratch.total_bytes, stored_constants,
      std::ranges::any_of(plan.specs, has_indirect_access), choices, choice_generation, numbers));
  return finish(ArtifactKind::plan, builder);
}

MemoryPlan scratch_of(const ProgramDescription& description) { return ProgramBuffers(description).scratch(); }

BuiltArtifact program_artifact(const ProgramDescription& description, const ManySizes* many) {
  const Graph& graph = description.graph;
  const ProgramBuffers placed(description);
  const MemoryPlan scratch = many != nullptr ? many->scratch : placed.scratch();
  flatbuffers::FlatBufferBuilder builder;

  std::vector<fb::ArtifactDigest> plans;
  for (const Digest& digest : description.plans) plans.push_back(to_stored(digest));
  std::vector<flatbuffers::Offset<fb::Call>> calls;
  for (const ProgramCall& call : description.calls) {
    std::vector<uint32_t> arguments;
    for (ValueId value : call.inputs) arguments.push_back(placed.index_of(value));
    for (ValueId value : call.outputs) arguments.push_back(placed.index_of(value));
    calls.push_back(fb::CreateCall(builder, call.plan, builder.CreateVector(arguments)));
  }
  std::vector<flatbuffers::Offset<fb::Tensor>> inputs, outputs;
  for (ValueId value : graph.inputs()) {
    inputs.push_back(write_layout(builder, graph.type(value), graph.type(value).strides));
  }
  for (size_t i = 0; i < graph.outputs().size(); ++i) {
    outputs.push_back(write_layout(builder, graph.type(graph.outputs()[i]), graph.output_strides()[i]));
  }
  const auto buffers = builder.CreateVector(placed.write(builder, scratch));
  const auto aliases = builder.CreateVector(write_aliases(builder, graph));
  const auto target = builder.CreateString(description.target);
  const auto stored_plans = builder.CreateVectorOfStructs(plans);
  const auto stored_calls = builder.CreateVector(calls);
  const auto stored_inputs = builder.CreateVector(inputs);
  const auto stored_outputs = builder.CreateVector(outputs);
  flatbuffers::Offset<flatbuffers::Vector<const fb::SizeRange*>> ranges = 0;
  if (many != nullptr) {
    std::vector<fb::SizeRange> stored_ranges;
    for (const SizeRange& range : many->ranges) stored_ranges.emplace_back(range.first, range.last);
    ranges = builder.CreateVectorOfStructs(stored_ranges);
  }
  const auto numbers = many != nullptr ? write_numbers(builder, many->numbers) : 0;
  builder.Finish(fb::CreateProgram(builder, k_program_version, stored_plans, buffers, stored_calls, scratch.total_bytes,
                                   stored_inputs, stored_outputs, aliases, target, description.generation,
                                   static_cast<uint32_t>(graph.nodes().size()), description.is_tuned, ranges, numbers));
  return finish(ArtifactKind::program, builder);
}

}  // namespace kiln
