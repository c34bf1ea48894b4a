#include "verdict/verdict.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/digest.h"
#include "base/expected.h"
#include "frontend/ops/tensor.h"
#include "verdict/output_check.h"

namespace kiln {

namespace {

constexpr uint64_t k_seed = 17;

/// Takes pairs out of `pairs` that name no buffer twice, as many as there are.
std::vector<Overwrite> take_disjoint(std::vector<Overwrite>& pairs) {
  std::vector<Overwrite> taken, left;
  for (const Overwrite& pair : pairs) {
    const bool is_free = std::ranges::none_of(
        taken, [&](const Overwrite& other) { return other.output == pair.output || other.input == pair.input; });
    (is_free ? taken : left).push_back(pair);
  }
  pairs = std::move(left);
  return taken;
}

}  // namespace

CandidateTrial::CandidateTrial(const KernelSpec& spec, CandidateRunner& runner, Situation situation, IndexWindow window)
    : m_spec(&spec), m_runner(&runner), m_situation(situation), m_data(spec, k_seed, situation, window) {}

Expected<CandidateTrial> CandidateTrial::prepare(const KernelSpec& spec, CandidateRunner& runner, Situation situation,
                                                 IndexWindow window) {
  CandidateTrial trial(spec, runner, situation, window);
  const SampleData& data = trial.m_data;
  std::vector<CandidateBuffer> requested;
  for (uint32_t i = 0; i < spec.buffers.size(); ++i) {
    const BufferSpec& buffer = spec.buffers[i];
    requested.push_back({buffer.bytes(), {}, data.misalignment(i)});
    if (buffer.role == BufferRole::input && data.has_source(i)) {
      KILN_ASSIGN_OR_RETURN(requested.back().source, data.source(i));
    }
  }
  KILN_ASSIGN_OR_RETURN(trial.m_buffers, runner.prepare(requested));
  trial.m_input_checksums.resize(spec.buffers.size(), 0);
  trial.m_initial.resize(spec.buffers.size());
  trial.m_initial_floats.resize(spec.buffers.size());
  for (uint32_t i = 0; i < spec.buffers.size(); ++i) {
    const BufferSpec& buffer = spec.buffers[i];
    const std::span<uint8_t> bytes = trial.m_buffers[i];
    if (trial.is_filled_input(i)) {
      KILN_RETURN_IF_ERROR(data.fill(i, bytes));
      trial.m_input_checksums[i] = checksum_of(bytes);
    } else if (buffer.role == BufferRole::inout && data.has_source(i)) {
      KILN_ASSIGN_OR_RETURN(const SampleSource source, data.source(i));
      KILN_ASSIGN_OR_RETURN(trial.m_initial_floats[i], SampleMapping::create(source, bytes.size()));
    } else if (buffer.role == BufferRole::inout) {
      trial.m_initial[i].resize(bytes.size());
      KILN_RETURN_IF_ERROR(data.fill(i, trial.m_initial[i]));
    }
  }
  return trial;
}

std::span<const uint8_t> CandidateTrial::initial_bytes(size_t index) const {
  const BufferSpec& buffer = m_spec->buffers[index];
  if (buffer.role != BufferRole::inout) return m_buffers[index];
  return m_data.has_source(static_cast<uint32_t>(index)) ? m_initial_floats[index].bytes()
                                                         : std::span<const uint8_t>(m_initial[index]);
}

void CandidateTrial::set_outputs(Poison which) {
  for (uint32_t i = 0; i < m_spec->buffers.size(); ++i) {
    const BufferSpec& buffer = m_spec->buffers[i];
    if (buffer.role == BufferRole::output) poison(buffer.dtype, m_buffers[i], which);
  }
  set_updated();
}

/// Outputs that are read, too, hold what they hold before a candidate runs. Not by std::ranges::copy, which GCC 12 makes a
/// loop over the bytes of spans.
void CandidateTrial::set_updated() {
  for (uint32_t i = 0; i < m_spec->buffers.size(); ++i) {
    if (m_spec->buffers[i].role != BufferRole::inout) continue;
    const std::span<const uint8_t> initial = initial_bytes(i);
    std::copy(initial.begin(), initial.end(), m_buffers[i].begin());
  }
}

/// As set_outputs(), for a run of which nothing else is looked at.
void CandidateTrial::set_demanded(const std::vector<OutputCheck>& checks) {
  for (const OutputCheck& check : checks) {
    const BufferSpec& buffer = m_spec->buffers[check.buffer()];
    if (buffer.role != BufferRole::output) continue;
    const size_t size = size_of(buffer.dtype);
    check.for_each_place([&](int64_t place) {
      poison(buffer.dtype, m_buffers[check.buffer()].subspan(static_cast<size_t>(place) * size, size), Poison::first);
    });
  }
  set_updated();
}

Expected<CandidateRun> CandidateTrial::run(const Image& image, uint32_t timeout_ms, uint32_t task_step) {
  auto run = m_runner->run(image, timeout_ms, 1, task_step, m_extents);
  const Status inputs = restore_inputs();
  KILN_RETURN_IF_ERROR(run.status());
  if (!run->red_zones_intact) return error(StatusCode::internal, "candidate wrote outside its buffers");
  KILN_RETURN_IF_ERROR(inputs);
  return run;
}

Verdict CandidateTrial::judge(const Image& image, const std::vector<OutputReference>& outputs, uint32_t timeout_ms,
                              uint32_t task_step) {
  Verdict verdict;
  std::vector<OutputCheck> checks;
  for (const OutputReference& output : outputs) {
    checks.emplace_back(output, m_spec->buffers[output.buffer].dtype, m_situation);
  }
  if (task_step == 1) {
    set_outputs(Poison::first);
  } else {
    set_demanded(checks);
  }
  const auto ran = run(image, timeout_ms, task_step);
  if (!ran.ok()) {
    verdict.status = ran.status();
    return verdict;
  }
  verdict.seconds = ran->seconds.empty() ? 0 : ran->seconds.front();
  if (ran->status != LaunchStatus::ok) {
    verdict.reported_bad_index = true;
    verdict.status = error(StatusCode::internal, "candidate reported an index out of range on valid indices");
    return verdict;
  }
  if (task_step == 1) verdict.status = check_written(image, outputs, timeout_ms);
  for (const OutputCheck& check : checks) {
    if (verdict.status.ok()) verdict.status = check_output(check, task_step == 1, verdict);
  }
  return verdict;
}

Status CandidateTrial::judge_in_place(const Image& image, uint32_t timeout_ms) {
  if (!m_runner->is_of_host()) return {};
  std::vector<Overwrite> left = overwrites(*m_spec);
  const std::vector<uint64_t> apart = written_checksums();
  while (!left.empty()) {
    const std::vector<Overwrite> pairs = take_disjoint(left);
    KILN_RETURN_IF_ERROR(run_over(pairs, image, timeout_ms));
    if (written_checksums() == apart) continue;
    return error(StatusCode::internal, "outputs are others when output {} is made over input {}", pairs.front().output,
                 pairs.front().input);
  }
  return {};
}

/// Runs the candidate with each pair's input in the memory of its output. Other outputs stay as they are until then.
Status CandidateTrial::run_over(std::span<const Overwrite> pairs, const Image& image, uint32_t timeout_ms) {
  std::vector<LaunchArgument> arguments;
  for (uint32_t i = 0; i < m_buffers.size(); ++i) {
    arguments.push_back({i, 0, m_buffers[i].size()});
  }
  set_updated();
  for (const Overwrite& pair : pairs) {
    std::copy(m_buffers[pair.input].begin(), m_buffers[pair.input].end(), m_buffers[pair.output].begin());
    arguments[pair.input].buffer = pair.output;
  }
  KILN_ASSIGN_OR_RETURN(const CandidateRun ran, m_runner->launch(image, arguments, m_extents, timeout_ms));
  KILN_RETURN_IF_ERROR(restore_inputs());
  if (!m_runner->red_zones_intact()) return error(StatusCode::internal, "candidate wrote outside its buffers");
  if (ran.status == LaunchStatus::ok) return {};
  return error(StatusCode::internal, "candidate reported an index out of range on valid indices");
}

std::vector<uint64_t> CandidateTrial::written_checksums() const {
  std::vector<uint64_t> checksums;
  for (size_t i = 0; i < m_buffers.size(); ++i) {
    if (m_spec->buffers[i].role != BufferRole::input) checksums.push_back(checksum_of(m_buffers[i]));
  }
  return checksums;
}

Status CandidateTrial::judge_refusal(const Image& image, bool must_report, uint32_t timeout_ms) {
  KILN_ASSIGN_OR_RETURN(const CandidateRun ran, run(image, timeout_ms, 1));  // whatever its outputs hold
  if (must_report && ran.status != LaunchStatus::index_out_of_range) {
    return error(StatusCode::internal, "candidate did not report an index out of range");
  }
  return {};
}

/// Every element was written: none is poisoned, or none of those that are is when the poison is another.
Status CandidateTrial::check_written(const Image& image, const std::vector<OutputReference>& outputs,
                                     uint32_t timeout_ms) {
  std::vector<std::vector<uint8_t>> first(outputs.size());  // what is poisoned in part
  bool is_doubtful = false;
  for (size_t i = 0; i < outputs.size(); ++i) {
    const BufferSpec& buffer = m_spec->buffers[outputs[i].buffer];
    if (buffer.role != BufferRole::output) continue;
    const std::span<const uint8_t> bytes = m_buffers[outputs[i].buffer];
    const int64_t place = first_unwritten(outputs[i], buffer.dtype, bytes, Poison::first);
    if (place < 0) continue;
    first[i].assign(bytes.begin(), bytes.end());
    is_doubtful = true;
  }
  if (!is_doubtful) return {};
  set_outputs(Poison::second);
  KILN_RETURN_IF_ERROR(run(image, timeout_ms, 1).status());
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (first[i].empty()) continue;
    const uint32_t index = outputs[i].buffer;
    const int64_t place = first_unwritten_twice(outputs[i], m_spec->buffers[index].dtype, first[i], m_buffers[index]);
    if (place >= 0) {
      return error(StatusCode::internal, "output {}: the element at offset {} was not written", index, place);
    }
  }
  return {};
}

/// Names the input that was changed; the next candidate and the reference find all as they were.
Status CandidateTrial::restore_inputs() {
  Status status;
  for (uint32_t i = 0; i < m_buffers.size(); ++i) {
    if (!is_filled_input(i)) continue;
    if (checksum_of(m_buffers[i]) == m_input_checksums[i]) continue;
    KILN_RETURN_IF_ERROR(m_data.fill(i, m_buffers[i]));
    status = error(StatusCode::internal, "candidate changed its input {}", i);
  }
  return status;
}

bool CandidateTrial::is_filled_input(uint32_t index) const {
  return m_spec->buffers[index].role == BufferRole::input && !m_data.has_source(index);
}

bool CandidateTrial::is_untouched(uint32_t index, int64_t place) const {
  const BufferSpec& buffer = m_spec->buffers[index];
  const size_t size = size_of(buffer.dtype), begin = static_cast<size_t>(place) * size;
  const auto element = m_buffers[index].subspan(begin, size);
  if (buffer.role == BufferRole::output) return find_poison(buffer.dtype, element) == 0;
  return std::ranges::equal(element, initial_bytes(index).subspan(begin, size));
}

Status CandidateTrial::check_output(const OutputCheck& check, bool is_whole, Verdict& verdict) const {
  const uint32_t index = check.buffer();
  const DType dtype = m_spec->buffers[index].dtype;
  const auto* bytes = reinterpret_cast<const std::byte*>(m_buffers[index].data());
  verdict.tiles += check.demanded().tiles;
  verdict.tiles_met += check.demanded().tiles_met;
  return check.compare([&](int64_t place) { return load_element(dtype, bytes, place); },
                       [&](int64_t place) { return !is_whole && is_untouched(index, place); }, verdict);
}

}  // namespace kiln
