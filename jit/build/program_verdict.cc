#include "jit/build/program_verdict.h"

#include <time.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <set>

#include "autotune/demanded_elements.h"
#include "autotune/sample_data.h"
#include "autotune/verdict.h"
#include "base/limits.h"
#include "frontend/ops/element_evaluator.h"
#include "frontend/ops/tensor.h"
#include "jit/build/fragment_reference.h"
#include "jit/build/kernel_builder.h"
#include "jit/build/launch_device.h"
#include "jit/build/launch_reference.h"
#include "jit/build/program_samples.h"
#include "jit/run/program.h"

namespace kiln {

namespace {

// Of each value: its kernel had its own verdict on thousands; here a wrong operand, layout or place must show, which
// leaves few elements right.
constexpr size_t k_elements_per_value = 48;
constexpr size_t k_least_elements = 8;
constexpr double k_seconds_per_value = 0.0015;  // CPU time, for elements beyond the least
// Elements to choose from: corners, edges and a lattice, from another place on at each launch.
constexpr size_t k_candidate_elements = 600;
constexpr uint8_t k_float_poison = 0xff;  // all ones: a NaN that no operation makes

double thread_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

double milliseconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
}

std::vector<int64_t> chosen_elements(const std::vector<int64_t>& dims, uint64_t turn) {
  std::vector<int64_t> all = demanded_elements(dims, k_candidate_elements, 17);
  if (all.size() <= k_elements_per_value) return all;
  std::vector<int64_t> chosen;
  for (size_t i = 0; i < k_elements_per_value; ++i) {
    chosen.push_back(all[(turn * 7 + i * all.size() / k_elements_per_value) % all.size()]);
  }
  return chosen;
}

/// The value as its dtype would hold it where that is infinite.
double beyond_range(DType dtype, double value) {
  const double stored = is_floating(dtype) ? round_to(dtype, value) : value;
  return std::isinf(stored) ? stored : value;
}

/// Replaces numbers that are not finite, or so large that products of them are not. True when there were any.
template <typename Word>
bool tame(std::span<uint8_t> bytes, Word exponent, Word limit, Word replacement) {
  const std::span words(reinterpret_cast<Word*>(bytes.data()), bytes.size() / sizeof(Word));
  Word found = 0;  // without an early exit: vector code
  for (const Word word : words) found |= static_cast<Word>((word & exponent) >= limit);
  if (found == 0) return false;
  for (Word& word : words) {
    if ((word & exponent) >= limit) word = replacement;
  }
  return true;
}

/// What is beyond 2^40 (in f16: infinite) becomes 1/2.
bool tame(DType dtype, std::span<uint8_t> bytes) {
  switch (dtype) {
    case DType::f16:
      return tame<uint16_t>(bytes, 0x7c00, 0x7c00, 0x3800);
    case DType::bf16:
      return tame<uint16_t>(bytes, 0x7f80, (127 + 40) << 7, 0x3f00);
    case DType::f32:
      return tame<uint32_t>(bytes, 0x7f800000, (127 + 40) << 23, 0x3f000000);
    case DType::f64:
      return tame<uint64_t>(bytes, 0x7ff0000000000000, uint64_t{1023 + 40} << 52, 0x3fe0000000000000);
    default:
      return false;
  }
}

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

/// What was made, and how a launch's arguments compare with it.
class Judge final : public LaunchObserver {
 public:
  Judge(const ProgramOrigin& origin, ProgramScript& script, ProgramVerdict& verdict)
      : m_script(script), m_verdict(verdict), m_kept(script.storages.size()) {
    for (uint32_t i = 0; i < script.outputs.size(); ++i) m_outputs_of[script.outputs[i].storage].push_back(i);
    m_outputs.resize(script.outputs.size());
    m_released.resize(script.steps.size());
    for (uint32_t i = 0; i < script.storages.size(); ++i) {
      const uint32_t last =
          script.storages[i].last_step;  // beyond all steps for what has no elements: nothing makes it
      if (i >= origin.client.inputs().size() && last < m_released.size()) m_released[last].push_back(i);
    }
  }

  /// The memory of the client's inputs, in order.
  void set_inputs(std::vector<std::span<uint8_t>> inputs) { m_inputs = std::move(inputs); }
  /// Memory that launches may write to.
  void allow_writing(uint32_t allocation) { m_writable.insert(allocation); }
  /// Memory that holds poison and nothing else.
  void set_poisoned(uint32_t allocation) { m_poisoned.insert(allocation); }
  size_t steps_done() const { return m_step; }
  bool is_inconclusive() const { return m_inconclusive; }

  Expected<std::vector<uint64_t>> begin(std::span<const Argument> arguments) override;
  uint32_t timeout_ms() const override { return run_timeout_ms(m_script.steps[m_step].spec()); }
  Status end(LaunchStatus reported) override;
  /// `layout` is the caller's; `bytes` what the caller reads.
  Status check_output(uint32_t output, const ValueLayout& layout, std::span<const uint8_t> bytes) const;

 private:
  ScriptStep& step() { return m_script.steps[m_step]; }
  std::span<const uint8_t> bytes_of(uint32_t storage) const {
    if (const auto here = m_here.find(storage); here != m_here.end()) return here->second;
    return storage < m_inputs.size() ? std::span<const uint8_t>(m_inputs[storage]) : m_kept[storage];
  }
  Status wrong(std::string what) const;
  Status check_places(std::span<const Argument> arguments);
  Status check_reads();
  void poison_outputs();
  Status keep_what_was_made();
  void tame_what_was_made();
  Status check_fragment(ScriptFragment& fragment);
  Status check_target(const ScriptFragment::Target& target, const ScriptFragment& fragment,
                      FragmentReference& reference);
  void remember_outputs();

  ProgramScript& m_script;
  ProgramVerdict& m_verdict;
  std::vector<std::span<uint8_t>> m_inputs;
  std::set<uint32_t> m_writable;                           // allocations
  std::set<uint32_t> m_poisoned;                           // allocations that nothing has written to yet
  std::map<uint32_t, std::span<uint8_t>> m_here;           // storages that nothing reads later: not kept
  std::vector<std::vector<uint8_t>> m_kept;                // by storage; empty before and after
  std::map<uint32_t, std::vector<uint32_t>> m_outputs_of;  // by storage
  /// An output when it was made: all of it, and some of its elements by name.
  struct Remembered {
    uint64_t checksum = 0;
    std::vector<std::pair<int64_t, double>> elements;
  };
  Remembered remember(const ValueLayout& layout, std::span<const uint8_t> bytes) const;
  std::vector<Remembered> m_outputs;
  std::vector<std::vector<uint32_t>> m_released;  // storages, by the step that reads them last
  std::vector<Argument> m_arguments;              // of the launch that runs
  std::chrono::steady_clock::time_point m_began;
  size_t m_step = 0;
  bool m_inconclusive = false;
};

Status Judge::wrong(std::string what) const {
  if (m_step >= m_script.steps.size()) return error(StatusCode::internal, "program: {}", what);
  const ScriptStep& step = m_script.steps[m_step];
  return error(StatusCode::internal, "program: launch {} of {} ({}, call {}): {}", m_step, m_script.steps.size(),
               kernel_name(step.spec()), step.call, what);
}

Expected<std::vector<uint64_t>> Judge::begin(std::span<const Argument> arguments) {
  if (m_step >= m_script.steps.size()) return wrong("launches more kernels than its plans have");
  if (arguments.size() != step().arguments.size()) {
    return wrong(fmt::format("has {} arguments, expected {}", arguments.size(), step().arguments.size()));
  }
  m_arguments.assign(arguments.begin(), arguments.end());
  KILN_RETURN_IF_ERROR(check_places(arguments));
  if (!m_inconclusive) KILN_RETURN_IF_ERROR(check_reads());
  poison_outputs();
  std::vector<uint64_t> bytes;
  for (const ScriptArgument& argument : step().arguments) bytes.push_back(argument.layout.bytes());
  m_began = std::chrono::steady_clock::now();
  return bytes;
}

Status Judge::check_places(std::span<const Argument> arguments) {
  const auto& said = step().arguments;
  for (size_t i = 0; i < said.size(); ++i) {
    const uint64_t bytes = said[i].layout.bytes();
    if (bytes > arguments[i].bytes.size())
      return wrong(fmt::format("argument {} ({}) ends outside its memory", i, said[i].name));
    if (said[i].role == BufferRole::input) continue;
    if (!m_writable.contains(arguments[i].allocation))
      return wrong(fmt::format("argument {} ({}) would be written to an input or a constant", i, said[i].name));
    for (size_t j = 0; j < said.size(); ++j) {
      const uint64_t others = said[j].layout.bytes();
      if (i == j || bytes == 0 || others == 0 || arguments[i].allocation != arguments[j].allocation) continue;
      const bool apart =
          arguments[i].offset + bytes <= arguments[j].offset || arguments[j].offset + others <= arguments[i].offset;
      if (!apart)
        return wrong(
            fmt::format("argument {} ({}) is written over argument {} ({})", i, said[i].name, j, said[j].name));
    }
  }
  return {};
}

Status Judge::check_reads() {
  for (size_t i = 0; i < m_arguments.size(); ++i) {
    const ScriptArgument& said = step().arguments[i];
    if (!said.read || said.layout.elements() == 0) continue;
    const std::span<const uint8_t> made = bytes_of(said.read->storage);
    if (made.data() == m_arguments[i].bytes.data() && said.layout.lies_as(said.read->layout)) continue;
    const int64_t at = find_difference(said.layout, m_arguments[i].bytes, said.read->layout, made);
    if (at < 0) continue;
    const auto load = [&](const ValueLayout& layout, std::span<const uint8_t> bytes) {
      return load_element(layout.dtype, reinterpret_cast<const std::byte*>(bytes.data()), layout.place_of(at));
    };
    return wrong(fmt::format("reads argument {} as {}: element {} is {:.9g}, expected {:.9g} as it was made", i,
                             said.name, at, load(said.layout, m_arguments[i].bytes), load(said.read->layout, made)));
  }
  return {};
}

/// Integers get two bytes in turn: no value is poison at every launch.
void Judge::poison_outputs() {
  for (size_t i = 0; i < m_arguments.size(); ++i) {
    const ScriptArgument& said = step().arguments[i];
    if (said.role == BufferRole::input || m_poisoned.erase(m_arguments[i].allocation) > 0) continue;
    if (said.role != BufferRole::output) continue;
    const uint8_t integer_poison = m_step % 2 == 0 ? 0xa5 : 0x5a;
    const uint8_t poison = is_floating(said.layout.dtype) ? k_float_poison : integer_poison;
    std::memset(m_arguments[i].bytes.data(), poison, said.layout.bytes());
  }
}

Status Judge::end(LaunchStatus reported) {
  m_verdict.run_ms += milliseconds_since(m_began);
  ++m_verdict.launches;
  if (reported != LaunchStatus::ok) {
    if (!step().computes_indices) return wrong("reported an index out of range on valid indices");
    m_inconclusive = true;
    m_verdict.not_judged = fmt::format("from launch {} on: the graph computes indices outside their tensor", m_step);
  }
  if (!m_inconclusive) {
    KILN_RETURN_IF_ERROR(keep_what_was_made());
    const auto start = std::chrono::steady_clock::now();
    for (ScriptFragment& fragment : step().fragments) KILN_RETURN_IF_ERROR(check_fragment(fragment));
    m_verdict.reference_ms += milliseconds_since(start);
    tame_what_was_made();
    remember_outputs();
  }
  m_here.clear();
  for (const uint32_t storage : m_released[m_step]) m_kept[storage] = {};
  ++m_step;
  return {};
}

Status Judge::keep_what_was_made() {
  for (size_t i = 0; i < m_arguments.size(); ++i) {
    const ScriptArgument& said = step().arguments[i];
    if (said.written == k_none) continue;
    const auto bytes = m_arguments[i].bytes.first(said.layout.bytes());
    if (said.role == BufferRole::output && is_floating(said.layout.dtype) && said.layout.is_packed()) {
      const int64_t place = find_poison(said.layout.dtype, bytes);
      if (place >= 0) return wrong(fmt::format("leaves argument {} ({}) unwritten at offset {}", i, said.name, place));
    }
    if (m_script.storages[said.written].last_step == m_step) {
      m_here[said.written] = bytes;
    } else {
      m_kept[said.written].assign(bytes.begin(), bytes.end());
    }
    if (!said.copied) continue;
    const int64_t at = find_difference(said.layout, bytes, said.copied->layout, bytes_of(said.copied->storage));
    if (at >= 0) return wrong(fmt::format("copies {} wrong from element {} on", said.name, at));
  }
  return {};
}

/// After they were judged: infinities would make all that follows infinite too, where nothing can be told apart. The
/// program goes on with other numbers, in its memory as in what is kept.
void Judge::tame_what_was_made() {
  for (size_t i = 0; i < m_arguments.size(); ++i) {
    const ScriptArgument& said = step().arguments[i];
    if (said.written == k_none) continue;
    const auto bytes = m_arguments[i].bytes.first(said.layout.bytes());
    const bool is_kept = !m_here.contains(said.written);
    if (tame(said.layout.dtype, bytes) && is_kept) std::ranges::copy(bytes, m_kept[said.written].begin());
  }
}

Status Judge::check_fragment(ScriptFragment& fragment) {
  std::vector<std::span<const std::byte>> inputs;
  for (const uint32_t storage : fragment.inputs) inputs.push_back(std::as_bytes(bytes_of(storage)));
  KILN_ASSIGN_OR_RETURN(const auto reference, FragmentReference::create(std::move(fragment.graph), std::move(inputs)));
  for (const ScriptFragment::Target& target : fragment.targets) {
    KILN_RETURN_IF_ERROR(check_target(target, fragment, *reference));
  }
  return {};
}

Status Judge::check_target(const ScriptFragment::Target& target, const ScriptFragment& fragment,
                           FragmentReference& reference) {
  const ValueLayout& layout = target.made.layout;
  const auto* made = reinterpret_cast<const std::byte*>(bytes_of(target.made.storage).data());
  if (layout.elements() == 0) return {};
  const auto elements = chosen_elements(layout.dims, m_step);
  const double start = thread_seconds();
  std::vector<double> expected;
  double squares = 0;
  size_t finite = 0;
  for (const int64_t element : elements) {
    expected.push_back(reference.at(target.value, element));
    if (std::isfinite(expected.back())) squares += expected.back() * expected.back(), ++finite;
    if (expected.size() >= k_least_elements && thread_seconds() - start > k_seconds_per_value) break;
  }
  if (!reference.status().ok() && step().computes_indices) return {};
  ++m_verdict.values;
  const double scale = finite ? std::sqrt(squares / static_cast<double>(finite)) : 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    const double got = load_element(layout.dtype, made, layout.place_of(elements[i]));
    const double want = beyond_range(layout.dtype, expected[i]);
    ++m_verdict.elements;
    if (got == want || (std::isnan(got) && std::isnan(want))) continue;
    if (std::isfinite(got) && std::isfinite(want)) {
      const DType dtype = is_floating(layout.dtype) ? fragment.coarsest : layout.dtype;
      double allowed = tolerance(dtype, fragment.reduction_length, want, scale);
      const double difference = std::abs(got - want);
      if (difference > allowed) allowed += k_sensitivity_factor * reference.sensitivity(target.value, elements[i]);
      if (allowed > 0) m_verdict.max_error = std::max(m_verdict.max_error, difference / allowed);
      if (difference <= allowed) continue;
    }
    // A step on the way may have left its dtype's range, which f64 does not: then no kernel is to blame.
    const double kept = reference.within_range(target.value, elements[i]);
    if (!std::isfinite(kept) && std::isfinite(want)) {
      ++m_verdict.beyond_range;
      continue;
    }
    return wrong(fmt::format("makes {}: element {} is {:.9g}, expected {:.9g}", target.name, elements[i], got, want));
  }
  return {};
}

Judge::Remembered Judge::remember(const ValueLayout& layout, std::span<const uint8_t> bytes) const {
  Remembered remembered{checksum_of_elements(layout, bytes), {}};
  for (const int64_t element : chosen_elements(layout.dims, 0)) {
    remembered.elements.emplace_back(
        element,
        load_element(layout.dtype, reinterpret_cast<const std::byte*>(bytes.data()), layout.place_of(element)));
  }
  return remembered;
}

void Judge::remember_outputs() {
  for (const ScriptArgument& said : step().arguments) {
    const auto found = m_outputs_of.find(said.written);
    if (said.written == k_none || found == m_outputs_of.end()) continue;
    for (const uint32_t output : found->second) {
      m_outputs[output] = remember(m_script.outputs[output].layout, bytes_of(said.written));
    }
  }
}

Status Judge::check_output(uint32_t output, const ValueLayout& layout, std::span<const uint8_t> bytes) const {
  const ScriptCell& made = m_script.outputs[output];
  if (layout.elements() == 0) return {};
  const bool is_input = made.storage < m_inputs.size();
  const Remembered then = is_input ? remember(made.layout, m_inputs[made.storage]) : m_outputs[output];
  if (checksum_of_elements(layout, bytes) == then.checksum) return {};
  for (const auto& [element, expected] : then.elements) {
    const double got =
        load_element(layout.dtype, reinterpret_cast<const std::byte*>(bytes.data()), layout.place_of(element));
    if (got == expected || (std::isnan(got) && std::isnan(expected))) continue;
    return error(StatusCode::internal, "program: output {}: element {} is {:.9g} at the end, expected {:.9g}", output,
                 element, got, expected);
  }
  return error(StatusCode::internal, "program: output {} does not hold at the end what was made for it", output);
}

/// One run of a linked program under a judge's eyes.
class ProgramTrial {
 public:
  ProgramTrial(const ProgramOrigin& origin, const LinkedProgram& linked, CandidateRunner& runner, ProgramScript& script,
               ProgramVerdict& verdict)
      : m_origin(origin),
        m_linked(linked),
        m_runner(runner),
        m_script(script),
        m_verdict(verdict),
        m_judge(origin, script, verdict),
        m_device(runner, m_judge) {}

  Status run() {
    KILN_ASSIGN_OR_RETURN(const auto stream, DeviceStream::create(m_device));
    LinkedSource source(m_linked, m_device, *stream);
    KILN_ASSIGN_OR_RETURN(m_program, Program::load(m_linked.program, source));
    KILN_RETURN_IF_ERROR(check_signature());
    KILN_RETURN_IF_ERROR(allocate());
    if (m_verdict.bytes > limits::k_program_verdict_bytes) {
      return error(StatusCode::resource_exhausted, "it needs {} bytes, at most {}", m_verdict.bytes,
                   limits::k_program_verdict_bytes);
    }
    KILN_RETURN_IF_ERROR(m_device.commit());
    fill();
    KILN_RETURN_IF_ERROR(m_program->launch(*stream, m_input_pointers, m_output_pointers, m_scratch));
    return check_end();
  }

 private:
  /// What clients take the program for must be what was asked for.
  Status check_signature() const;
  Status allocate();
  void fill();
  Status check_end() const;

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
  ProgramScript& m_script;
  ProgramVerdict& m_verdict;
  Judge m_judge;
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
    KILN_ASSIGN_OR_RETURN(ProgramSample sample, ProgramSample::of(input_layout(i), m_script.index_bounds[i],
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
  // Scratch is poisoned where a launch is about to write.
  for (const uint32_t allocation : m_outputs) {
    std::ranges::fill(m_device.bytes(allocation), k_float_poison);
    m_judge.set_poisoned(allocation);
  }
}

Status ProgramTrial::check_end() const {
  if (m_judge.is_inconclusive()) return {};
  if (m_judge.steps_done() != m_script.steps.size()) {
    return error(StatusCode::internal, "program: launches {} kernels, its plans have {}", m_judge.steps_done(),
                 m_script.steps.size());
  }
  if (!m_runner.red_zones_intact()) return error(StatusCode::internal, "program: wrote outside its memory");
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

ProgramVerdict judge_program(const ProgramOrigin& origin, const LinkedProgram& linked, CandidateRunner& runner) {
  ProgramVerdict verdict;
  auto script = ProgramScript::write(origin);
  verdict.status = script.status();
  if (!script.ok()) return verdict;
  verdict.status = ProgramTrial(origin, linked, runner, *script, verdict).run();
  // Without memory nothing is known of the program: it is not called wrong.
  const StatusCode code = verdict.status.code();
  if (code == StatusCode::resource_exhausted || code == StatusCode::unimplemented) {
    verdict.not_judged = verdict.status.message();
    verdict.status = {};
  }
  return verdict;
}

}  // namespace kiln
