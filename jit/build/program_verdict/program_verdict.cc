#include "jit/build/program_verdict/program_verdict.h"

#include <algorithm>
#include <memory>

#include "jit/build/program_verdict/launch_device.h"
#include "jit/build/program_verdict/program_judge.h"
#include "jit/build/program_verdict/program_samples.h"
#include "jit/run/program.h"
#include "verdict/sample_data.h"

namespace kiln {

namespace {

/// The kernels and plans of the linked program, on the device of the run.
class LinkedSource final : public ArtifactSource {
 public:
  LinkedSource(const LinkedProgram& linked, LaunchDevice& device, DeviceStream& stream)
      : m_linked(linked), m_device(device), m_stream(stream) {}
  Expected<std::span<const uint8_t>> plan(const Digest& digest) override { return m_linked.plan(digest); }
  Expected<std::shared_ptr<const Executable>> executable(const Digest& digest) override {
    KILN_ASSIGN_OR_RETURN(LinkedProgram::Kernel kernel, m_linked.kernel(digest));
    return m_device.kernel(std::move(kernel.image), kernel.buffer_count);
  }
  DeviceStream* stream() override { return &m_stream; }

 private:
  const LinkedProgram& m_linked;
  LaunchDevice& m_device;
  DeviceStream& m_stream;
};

/// One run of a linked program under a judge's eyes.
class ProgramTrial {
 public:
  ProgramTrial(const ProgramOrigin& origin, const LinkedProgram& linked, CandidateRunner& runner,
               uint64_t memory_max_bytes, StandIns stand_ins, ProgramScript& script, IndexWindow window,
               ProgramVerdict& verdict)
      : m_origin(origin),
        m_linked(linked),
        m_runner(runner),
        m_memory_max_bytes(memory_max_bytes),
        m_script(script),
        m_window(window),
        m_verdict(verdict),
        m_judge(origin, script, stand_ins, verdict),
        m_device(runner, m_judge) {}

  Status run() {
    KILN_ASSIGN_OR_RETURN(const auto stream, DeviceStream::create(m_device));
    LinkedSource source(m_linked, m_device, *stream);
    KILN_ASSIGN_OR_RETURN(m_program, Program::load(m_linked.program, source));
    KILN_RETURN_IF_ERROR(check_signature());
    KILN_RETURN_IF_ERROR(allocate());
    if (m_verdict.bytes > m_memory_max_bytes) {
      return error(StatusCode::resource_exhausted, "it needs {} bytes, at most {}", m_verdict.bytes,
                   m_memory_max_bytes);
    }
    KILN_RETURN_IF_ERROR(m_device.commit());
    fill();
    KILN_RETURN_IF_ERROR(
        m_program->launch(*stream, m_input_pointers, m_output_pointers, m_scratch, IndexErrors::asserted));
    m_verdict.arguments = m_device.launched();
    return check_end();
  }

 private:
  /// What clients take the program for must be what was asked for.
  Status check_signature() const;
  Status allocate();
  void fill();
  Status check_in_place() const;
  Status check_end();

  ValueLayout input_layout(size_t i) const {
    const TensorType& type = m_origin.client.type(m_origin.client.inputs()[i]);
    return ValueLayout::of(type, type.strides);
  }
  ValueLayout output_layout(size_t i) const {
    return ValueLayout::of(m_origin.client.type(m_origin.client.outputs()[i]), m_origin.client.output_strides()[i]);
  }
  /// Every other output lies as a caller's view may: aligned to its dtype only.
  static uint64_t shift_of(size_t output, DType dtype) { return output % 2 * size_of(dtype); }

  const ProgramOrigin& m_origin;
  const LinkedProgram& m_linked;
  CandidateRunner& m_runner;
  const uint64_t m_memory_max_bytes;
  ProgramScript& m_script;
  const IndexWindow m_window;
  ProgramVerdict& m_verdict;
  ProgramJudge m_judge;
  LaunchDevice m_device;
  std::shared_ptr<const Program> m_program;
  std::vector<ProgramSample> m_samples;
  std::vector<uint32_t> m_inputs, m_outputs;  // allocations
  std::vector<const void*> m_input_pointers;
  std::vector<void*> m_output_pointers;
  std::vector<uint64_t> m_input_checksums;
  void* m_scratch = nullptr;
};

bool is_as_asked(const TensorLayout& said, const ValueLayout& asked) {
  if (said.dtype != asked.dtype || said.dims != asked.dims) return false;
  TensorType type{said.dtype, {}, {}};
  type.shape.assign(said.dims.begin(), said.dims.end());
  return ValueLayout::of(type, said.strides).lies_as(asked);
}

Status ProgramTrial::check_signature() const {
  const auto& inputs = m_program->inputs();
  const auto& outputs = m_program->outputs();
  if (inputs.size() != m_origin.client.inputs().size() || outputs.size() != m_origin.client.outputs().size()) {
    return error(StatusCode::internal, "program: it takes {} inputs and gives {} outputs, expected {} and {}",
                 inputs.size(), outputs.size(), m_origin.client.inputs().size(), m_origin.client.outputs().size());
  }
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!is_as_asked(inputs[i], input_layout(i)))
      return error(StatusCode::internal, "program: input {} has another layout than asked for", i);
  }
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (!is_as_asked(outputs[i], output_layout(i)))
      return error(StatusCode::internal, "program: output {} has another layout than asked for", i);
  }
  return {};
}

Status ProgramTrial::allocate() {
  for (size_t i = 0; i < m_origin.client.inputs().size(); ++i) {
    KILN_ASSIGN_OR_RETURN(ProgramSample sample, ProgramSample::of(input_layout(i), m_script.index_bounds[i], m_window,
                                                                  m_script.becomes_float[i], i + 1));
    if (sample.buffer().source.pool == nullptr) m_verdict.bytes += sample.buffer().size_bytes;
    m_input_pointers.push_back(m_device.allocate_input(sample.buffer(), &m_inputs.emplace_back()));
    m_samples.push_back(sample);
  }
  const auto allocate_written = [&](uint64_t bytes, uint64_t shift) {
    uint32_t allocation = 0;
    auto* memory = static_cast<uint8_t*>(m_device.allocate_input({bytes + shift, {}}, &allocation));
    m_judge.allow_writing(allocation);
    m_verdict.bytes += bytes + shift;
    return std::pair(allocation, memory + shift);
  };
  for (size_t i = 0; i < m_origin.client.outputs().size(); ++i) {
    const ValueLayout layout = output_layout(i);
    const auto [allocation, memory] = allocate_written(layout.bytes(), shift_of(i, layout.dtype));
    m_outputs.push_back(allocation);
    m_output_pointers.push_back(memory);
  }
  m_scratch = allocate_written(m_program->launch_scratch_bytes(), 0).second;
  m_verdict.bytes += m_script.kept_bytes;
  return {};
}

void ProgramTrial::fill() {
  std::vector<std::span<uint8_t>> inputs;
  for (size_t i = 0; i < m_inputs.size(); ++i) {
    const std::span<uint8_t> bytes = m_device.bytes(m_inputs[i]);
    if (m_samples[i].buffer().source.pool == nullptr) m_samples[i].fill(bytes);
    m_input_checksums.push_back(m_samples[i].buffer().source.pool == nullptr ? checksum_of(bytes) : 0);
    inputs.push_back(bytes);
  }
  m_judge.set_inputs(std::move(inputs));
  m_judge.set_places(m_inputs, m_outputs);
}

/// An output that clients may be told to make over an input could have been: its kernels are known to (judge_in_place()).
Status ProgramTrial::check_in_place() const {
  for (uint32_t output = 0; output < m_outputs.size(); ++output) {
    for (uint32_t input = 0; input < m_inputs.size(); ++input) {
      if (!m_program->in_place().allows(output, input) || m_judge.in_place().allows(output, input)) continue;
      return error(StatusCode::internal, "program: allows output {} over input {}, which is read after it was written",
                   output, input);
    }
  }
  return {};
}

Status ProgramTrial::check_end() {
  if (m_judge.is_inconclusive()) return {};
  if (m_judge.steps_done() != m_script.steps.size()) {
    return error(StatusCode::internal, "program: launches {} kernels, its plans have {}", m_judge.steps_done(),
                 m_script.steps.size());
  }
  if (!m_runner.red_zones_intact()) return error(StatusCode::internal, "program: wrote outside its memory");
  KILN_RETURN_IF_ERROR(check_in_place());
  for (size_t i = 0; i < m_inputs.size(); ++i) {
    if (m_input_checksums[i] == 0 || checksum_of(m_device.bytes(m_inputs[i])) == m_input_checksums[i]) continue;
    return error(StatusCode::internal, "program: changed its input {}", i);
  }
  for (uint32_t i = 0; i < m_outputs.size(); ++i) {
    const ValueLayout layout = output_layout(i);
    const uint32_t alias = m_program->output_alias(i);
    std::span<const uint8_t> bytes = m_device.bytes(m_outputs[i]).subspan(shift_of(i, layout.dtype));
    if (alias != k_none) {
      if (!input_layout(alias).lies_as(layout)) {
        return error(StatusCode::internal, "program: output {} is input {}, which lies otherwise", i, alias);
      }
      bytes = m_device.bytes(m_inputs[alias]);
    }
    KILN_RETURN_IF_ERROR(m_judge.check_output(i, layout, bytes));
  }
  return {};
}

}  // namespace

ProgramVerdict judge_program(const ProgramOrigin& origin, const LinkedProgram& linked, CandidateRunner& runner,
                             uint64_t memory_max_bytes, StandIns stand_ins) {
  ProgramVerdict verdict;
  for (const IndexWindow window : k_index_windows) {
    verdict = {};
    auto script = ProgramScript::write(origin);
    verdict.status = script.status();
    if (!script.ok()) return verdict;
    verdict.status = ProgramTrial(origin, linked, runner, memory_max_bytes, stand_ins, *script, window, verdict).run();
    const bool has_window = std::ranges::any_of(script->index_bounds, [](int64_t bound) { return bound > 0; });
    if (!verdict.status.ok() || verdict.not_judged.empty() || !has_window) break;
  }
  // Without memory nothing is known of the program: it is not called wrong.
  const StatusCode code = verdict.status.code();
  if (code == StatusCode::resource_exhausted || code == StatusCode::unimplemented) {
    verdict.not_judged = verdict.status.message();
    verdict.status = {};
  }
  return verdict;
}

}  // namespace kiln
