#include "jit/build/program_verdict/program_judge.h"

#include <algorithm>
#include <cmath>

#include "frontend/kernel/overwrites.h"
#include "frontend/ops/tensor.h"
#include "jit/build/program_verdict/repeated_launches.h"
#include "jit/build/program_verdict/tame.h"
#include "verdict/demanded_elements.h"
#include "verdict/sample_data.h"
#include "verdict/sample_pool.h"
#include "verdict/verdict.h"

namespace kiln {

namespace {

// How many elements of each value are compared: its kernel had its own verdict on thousands; here a wrong operand,
// layout or place must show, which leaves few elements right.
constexpr size_t k_elements_per_value = 48;
constexpr size_t k_least_elements = 8;
constexpr double k_seconds_per_value = 0.0015;  // CPU time, for elements beyond the least
// How much longer elements take when all that they are made of is rounded otherwise.
constexpr double k_slower_perturbed = 4;
// Elements to choose from: corners, edges and a lattice, from another place on at each launch.
constexpr size_t k_candidate_elements = 600;
// Of a launch that costs more scalar operations, some tasks are run.
constexpr double k_most_operations = 2e7;

double milliseconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
}

double allowed_error(DType dtype, const ScriptFragment& fragment, double want, double scale) {
  return tolerance(is_floating(dtype) ? fragment.coarsest : dtype, fragment.reduction_length, want, scale);
}

/// The root mean square of what is finite.
double typical_of(std::span<const double> values) {
  double squares = 0;
  size_t finite = 0;
  for (const double each : values) {
    if (std::isfinite(each)) squares += each * each, ++finite;
  }
  return finite ? std::sqrt(squares / static_cast<double>(finite)) : 0;
}

/// The bytes of one element of a value.
template <typename Byte>
std::span<Byte> element_in(std::span<Byte> bytes, const ValueLayout& layout, int64_t element) {
  const size_t size = size_of(layout.dtype);
  return bytes.subspan(static_cast<size_t>(layout.place_of(element)) * size, size);
}

bool overlap(std::span<const uint8_t> a, std::span<const uint8_t> b) {
  return !a.empty() && !b.empty() && a.data() < b.data() + b.size() && b.data() < a.data() + a.size();
}

/// Samples are finite: NaN comes of what leaves f64's range on the way. A kernel that sums in another order, or leaves out keys
/// that nobody sees, need not meet it, and may meet it where the reference is infinite. Probabilities beyond all range come of
/// a sample in the place of a logsumexp, for which attention's gradients have no value.
bool comes_of_overflow(const KernelSpec& spec, DType dtype, const Doubt& doubt) {
  if (std::isnan(doubt.exact)) return true;
  const bool is_of_attention = std::holds_alternative<AttentionBackwardSpec>(spec.kernel);
  return std::isinf(beyond_range(dtype, doubt.exact)) && (is_of_attention || std::isnan(doubt.got));
}

bool is_poisoned(DType dtype, std::span<const uint8_t> element) { return find_poison(dtype, element) == 0; }

}  // namespace

ProgramJudge::ProgramJudge(const ProgramOrigin& origin, ProgramScript& script, StandIns stand_ins,
                           ProgramVerdict& verdict)
    : m_script(script),
      m_stand_ins(stand_ins),
      m_verdict(verdict),
      m_made(script.storages.size()),
      m_repeats(find_repeated_launches(script)),
      m_judged(script.steps.size()) {
  std::set<uint32_t> outputs;
  for (const ScriptCell& output : script.outputs) outputs.insert(output.storage);
  m_released.resize(script.steps.size());
  for (uint32_t i = 0; i < script.storages.size(); ++i) {
    const uint32_t last = script.storages[i].last_step;  // beyond all steps for what has no elements: nothing makes it
    const bool is_made = i >= origin.client.inputs().size() && !outputs.contains(i);
    if (is_made && last < m_released.size()) m_released[last].push_back(i);
  }
}

Status ProgramJudge::wrong(std::string what) const {
  if (m_step >= m_script.steps.size()) return error(StatusCode::internal, "program: {}", what);
  const ScriptStep& step = m_script.steps[m_step];
  return error(StatusCode::internal, "program: launch {} of {} ({}, call {}): {}", m_step, m_script.steps.size(),
               kernel_name(step.spec()), step.call, what);
}

Expected<std::vector<LaunchObserver::Given>> ProgramJudge::begin(const Launch& launch) {
  const std::span<const Argument> arguments = launch.arguments;
  if (m_step >= m_script.steps.size()) return wrong("launches more kernels than its plans have");
  if (arguments.size() != step().arguments.size()) {
    return wrong(fmt::format("has {} arguments, expected {}", arguments.size(), step().arguments.size()));
  }
  m_arguments.assign(arguments.begin(), arguments.end());
  KILN_RETURN_IF_ERROR(check_places(arguments));
  if (!m_inconclusive) KILN_RETURN_IF_ERROR(check_reads());
  follow_places();
  m_stands_in = can_stand_in(launch);
  m_running = {&launch.image, {launch.extents.begin(), launch.extents.end()}};
  m_task_step = m_stands_in ? 1 : affordable_task_step();
  std::vector<Given> given = give();  // while what is updated in place is not called overwritten
  m_foreseen.clear();
  if (!m_inconclusive && !m_stands_in && m_task_step == 1 && overwrites_what_it_reads())
    KILN_RETURN_IF_ERROR(foresee());
  remember_what_is_overwritten();
  if (!m_stands_in) poison_targets();
  m_began = std::chrono::steady_clock::now();
  return given;
}

/// What stands in for contents is read where it is; what is written to, too, has to have them in the memory.
std::vector<LaunchObserver::Given> ProgramJudge::give() {
  std::vector<Given> given;
  for (size_t i = 0; i < m_arguments.size(); ++i) {
    const ScriptArgument& said = step().arguments[i];
    Given& each = given.emplace_back(Given{said.layout.bytes()});
    if (m_stands_in || !said.read || !is_at(said.read->storage, m_arguments[i].bytes)) continue;
    Made& made = m_made[said.read->storage];
    if (!made.stand_in) continue;
    if (said.role == BufferRole::input) {
      each.source = made.stand_in->source;
    } else {
      settle(made);
    }
  }
  return given;
}

/// Whether what the launch would compute is known to be right: it repeats one that was judged, with the same kernel.
bool ProgramJudge::can_stand_in(const Launch& launch) const {
  const std::optional<Judged>& judged = m_judged[m_repeats[m_step]];
  if (m_inconclusive || !judged || !is_replaceable()) return false;
  return judged->image->code == launch.image.code && judged->image->entry == launch.image.entry &&
         std::ranges::equal(judged->extents, launch.extents);
}

/// Whether sample data may be in the place of what the launch makes. Integers are made by the kernel, since what they address
/// may be made of them, and so is a value that is made twice: its contents must be equal.
bool ProgramJudge::is_replaceable() const {
  return !step().computes_indices && std::ranges::all_of(step().arguments, [&](const ScriptArgument& argument) {
    if (argument.role == BufferRole::input) return true;
    if (argument.written != k_none && m_script.storages[argument.written].has_twin) return false;
    return argument.role == BufferRole::output && is_floating(argument.layout.dtype) && !argument.copied;
  });
}

bool ProgramJudge::is_read_later(const ScriptArgument& made) const {
  return made.written == k_none || m_script.storages[made.written].last_step != m_step;
}

/// Other sample data for each value. Where it begins every element is whole, whatever the dtype.
Expected<ProgramJudge::StandIn> ProgramJudge::stand_in(size_t argument) const {
  const ValueLayout& layout = step().arguments[argument].layout;
  KILN_ASSIGN_OR_RETURN(const SamplePool* pool, SamplePool::of(layout.dtype, SamplePool::Kind::small));
  const SampleSource source{pool, (m_step * 7'919 + argument * 104'729) * 64 % SamplePool::k_bytes};
  KILN_ASSIGN_OR_RETURN(SampleMapping mapping, SampleMapping::create(source, layout.bytes()));
  return StandIn{source, std::move(mapping)};
}

/// Not by std::ranges::copy, which GCC 12 makes a loop over the bytes of spans.
void ProgramJudge::settle(Made& made) {
  if (!made.stand_in || made.is_overwritten) return;
  const std::span<const uint8_t> contents = made.stand_in->mapping.bytes();
  std::copy(contents.begin(), contents.end(), made.bytes.begin());
  made.stand_in.reset();
}

void ProgramJudge::settle_at(std::span<const uint8_t> bytes) {
  for (Made& made : m_made) {
    if (overlap(made.bytes, bytes)) settle(made);
  }
}

std::span<const uint8_t> ProgramJudge::bytes_of(uint32_t storage) const {
  if (storage < m_inputs.size()) return m_inputs[storage];
  const Made& made = m_made[storage];
  if (made.stand_in) return made.stand_in->mapping.bytes();
  return made.copy ? std::span<const uint8_t>(*made.copy) : made.bytes;
}

bool ProgramJudge::is_at(uint32_t storage, std::span<const uint8_t> bytes) const {
  if (storage < m_inputs.size()) return m_inputs[storage].data() == bytes.data();
  return !m_made[storage].is_overwritten && m_made[storage].bytes.data() == bytes.data();
}

Status ProgramJudge::check_places(std::span<const Argument> arguments) {
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

void ProgramJudge::set_places(const std::vector<uint32_t>& inputs, const std::vector<uint32_t>& outputs) {
  const auto note = [&](const std::vector<uint32_t>& allocations, DataFlow::Place place) {
    for (uint32_t i = 0; i < allocations.size(); ++i) m_places[allocations[i]] = {.place = place, .index = i};
  };
  note(inputs, DataFlow::Place::input);
  note(outputs, DataFlow::Place::output);
}

void ProgramJudge::follow_places() {
  std::vector<DataFlow::Access> launch;
  for (size_t i = 0; i < m_arguments.size(); ++i) {
    const auto found = m_places.find(m_arguments[i].allocation);
    launch.push_back(found == m_places.end() ? DataFlow::Access{} : found->second);
    launch.back().role = static_cast<DataFlow::Role>(step().arguments[i].role);
  }
  std::vector<InPlace::Pair> allowed;
  for (const Overwrite& pair : overwrites(step().spec())) allowed.push_back({pair.output, pair.input});
  m_in_place.add(launch, allowed);
}

Status ProgramJudge::check_reads() {
  for (size_t i = 0; i < m_arguments.size(); ++i) {
    const ScriptArgument& said = step().arguments[i];
    if (!said.read || said.layout.elements() == 0) continue;
    if (is_at(said.read->storage, m_arguments[i].bytes) && said.layout.lies_as(said.read->layout)) continue;
    settle_at(m_arguments[i].bytes);
    const std::span<const uint8_t> made = bytes_of(said.read->storage);
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

uint32_t ProgramJudge::affordable_task_step() const {
  return is_replaceable() ? task_step_within(step().spec(), k_most_operations) : 1;
}

std::vector<int64_t> ProgramJudge::chosen_elements(const std::vector<int64_t>& dims) const {
  std::vector<int64_t> all = demanded_elements(dims, k_candidate_elements, 17);
  const size_t wanted = k_elements_per_value * m_task_step;
  if (all.size() <= wanted) return all;
  std::vector<int64_t> chosen;
  for (size_t i = 0; i < wanted; ++i) chosen.push_back(all[(m_step * 7 + i * all.size() / wanted) % all.size()]);
  return chosen;
}

/// The elements that will be compared hold nothing that was computed, unless the launch reads them, too: that every element
/// is written is known from the kernel's own verdict, what may be wrong here is where. Integers get two bytes in turn: no
/// value is poison each time.
void ProgramJudge::poison_targets() {
  const auto& said = step().arguments;
  for (const ScriptFragment& fragment : step().fragments) {
    for (const ScriptFragment::Target& target : fragment.targets) {
      const ValueLayout& layout = target.made.layout;
      if (layout.elements() == 0) continue;
      const auto argument = std::ranges::find(said, target.made.storage, &ScriptArgument::written);
      if (argument->role != BufferRole::output) continue;
      const Poison which = is_floating(layout.dtype) || m_step % 2 == 0 ? Poison::first : Poison::second;
      const std::span<uint8_t> bytes = m_arguments[static_cast<size_t>(argument - said.begin())].bytes;
      for (const int64_t element : chosen_elements(layout.dims)) {
        poison(layout.dtype, element_in(bytes, layout, element), which);
      }
    }
  }
}

bool ProgramJudge::is_written_over(const Made& made) const {
  if (made.is_overwritten) return false;
  for (size_t i = 0; i < m_arguments.size(); ++i) {
    const ScriptArgument& said = step().arguments[i];
    if (said.role == BufferRole::input) continue;
    if (overlap(made.bytes, m_arguments[i].bytes.first(said.layout.bytes()))) return true;
  }
  return false;
}

/// Whether the launch writes over values that are needed for nothing but to know what it must make.
bool ProgramJudge::overwrites_what_it_reads() const {
  return std::ranges::any_of(step().fragments, [&](const ScriptFragment& fragment) {
    return std::ranges::any_of(fragment.inputs, [&](uint32_t storage) {
      return storage >= m_inputs.size() && !m_made[storage].stand_in && is_written_over(m_made[storage]);
    });
  });
}

/// Computes what the launch must make, and how far that may be off, while all that it reads is there.
Status ProgramJudge::foresee() {
  const auto start = std::chrono::steady_clock::now();
  for (ScriptFragment& fragment : step().fragments) {
    KILN_ASSIGN_OR_RETURN(const auto reference, reference_of(fragment));
    std::vector<Expectation>& foreseen = m_foreseen.emplace_back();
    for (size_t i = 0; i < fragment.targets.size(); ++i) {
      const ScriptFragment::Target& target = fragment.targets[i];
      Expectation& expected =
          foreseen.emplace_back(expect(target, chosen_elements(target.made.layout.dims), *reference));
      for (size_t e = 0; e < expected.values.size(); ++e)
        expected.uncertainties.push_back(reference->uncertainty(i, expected.elements[e]));
    }
  }
  m_verdict.reference_ms += milliseconds_since(start);
  return {};
}

/// Whether contents are compared with, or computed from, once the launch has run.
bool ProgramJudge::is_needed_later(uint32_t storage) const {
  if (m_script.storages[storage].last_step > m_step) return true;
  if (std::ranges::find(m_script.outputs, storage, &ScriptCell::storage) != m_script.outputs.end()) return true;
  const bool is_copied = std::ranges::any_of(step().arguments, [&](const ScriptArgument& argument) {
    return argument.copied && argument.copied->storage == storage;
  });
  const bool has_references = !m_stands_in && m_foreseen.empty();  // that are computed after the launch
  return is_copied || (has_references && std::ranges::any_of(step().fragments, [&](const ScriptFragment& fragment) {
                         return std::ranges::find(fragment.inputs, storage) != fragment.inputs.end();
                       }));
}

/// What was made stays where it was made until a launch writes there again. Copied by pointers: of a span's iterators GCC 12
/// makes a loop over the bytes.
void ProgramJudge::remember_what_is_overwritten() {
  for (uint32_t storage = 0; storage < m_made.size(); ++storage) {
    Made& made = m_made[storage];
    if (!is_written_over(made)) continue;
    made.is_overwritten = true;
    if (made.stand_in || !is_needed_later(storage)) continue;
    made.copy.emplace(made.bytes.data(), made.bytes.data() + made.bytes.size());
  }
}

Status ProgramJudge::end(LaunchStatus reported) {
  m_verdict.run_ms += milliseconds_since(m_began);
  ++m_verdict.launches;
  if (reported != LaunchStatus::ok) {
    if (!step().computes_indices) return wrong("reported an index out of range on valid indices");
    m_inconclusive = true;
    m_verdict.not_judged = fmt::format("from launch {} on: the graph computes indices outside their tensor", m_step);
  }
  if (!m_inconclusive) KILN_RETURN_IF_ERROR(judge_what_was_made());
  for (const uint32_t storage : m_released[m_step]) release(m_made[storage]);
  ++m_step;
  return {};
}

/// Whoever still reads what was there before finds it overwritten.
void ProgramJudge::release(Made& made) {
  const auto was_there = [&](const Made& other) { return other.is_overwritten && overlap(other.bytes, made.bytes); };
  if (made.stand_in && std::ranges::any_of(m_made, was_there)) settle(made);
  made = {};
}

Status ProgramJudge::judge_what_was_made() {
  KILN_RETURN_IF_ERROR(note_what_was_made());
  if (m_stands_in) {
    ++m_verdict.stood_in;
    return replace_what_was_made();
  }
  const auto start = std::chrono::steady_clock::now();
  const uint64_t undetermined = m_verdict.undetermined;
  for (size_t i = 0; i < step().fragments.size(); ++i) KILN_RETURN_IF_ERROR(check_fragment(i));
  m_verdict.reference_ms += milliseconds_since(start);
  if (m_verdict.undetermined == undetermined) m_judged[m_step] = m_running;
  if (m_task_step > 1) KILN_RETURN_IF_ERROR(replace_what_was_made());
  follow_what_was_replaced();
  if (m_task_step == 1) tame_what_was_made();
  return {};
}

/// What no launch computed, or some tasks of one, is sample data for the launches that follow.
Status ProgramJudge::replace_what_was_made() {
  for (size_t i = 0; i < m_arguments.size(); ++i) {
    const ScriptArgument& said = step().arguments[i];
    if (said.written == k_none) continue;
    m_replaced.insert(said.written);
    KILN_ASSIGN_OR_RETURN(m_made[said.written].stand_in, stand_in(i));
    if (m_stand_ins == StandIns::in_place && is_read_later(said)) settle(m_made[said.written]);
  }
  return {};
}

Status ProgramJudge::note_what_was_made() {
  for (size_t i = 0; i < m_arguments.size(); ++i) {
    const ScriptArgument& said = step().arguments[i];
    if (said.written == k_none) continue;
    const auto bytes = m_arguments[i].bytes.first(said.layout.bytes());
    m_made[said.written] = {bytes};
    if (!said.copied) continue;
    const int64_t at = find_difference(said.layout, bytes, said.copied->layout, bytes_of(said.copied->storage));
    if (at >= 0) return wrong(fmt::format("copies {} wrong from element {} on", said.name, at));
  }
  return {};
}

/// Replaces what is too large in values that were judged: infinities would make all that follows infinite too, where
/// nothing can be told apart. The program goes on with other numbers.
void ProgramJudge::tame_what_was_made() {
  for (size_t i = 0; i < m_arguments.size(); ++i) {
    const ScriptArgument& said = step().arguments[i];
    if (said.written == k_none) continue;
    if (m_script.storages[said.written].last_step == m_step) continue;  // nothing follows from what nothing reads
    if (tame(said.layout.dtype, m_arguments[i].bytes.first(said.layout.bytes()))) m_replaced.insert(said.written);
  }
}

/// Whether the launch and its reference begin with different values, of which some were replaced since they were made: one
/// reads what the other computes again. Then they differ, and neither is wrong.
bool ProgramJudge::begins_elsewhere(const ScriptFragment& fragment) const {
  if (m_replaced.empty()) return false;
  const std::set<uint32_t> computed_from(fragment.inputs.begin(), fragment.inputs.end());
  std::set<uint32_t> read;
  for (const ScriptArgument& argument : m_script.steps[m_step].arguments) {
    if (argument.read) read.insert(argument.read->storage);
  }
  return std::ranges::any_of(m_replaced,
                             [&](uint32_t each) { return computed_from.contains(each) != read.contains(each); });
}

/// What was made from replaced values, or other than its reference was, is as if it had been replaced itself: a later
/// reference may begin before them, with what they were.
void ProgramJudge::follow_what_was_replaced() {
  std::set<uint32_t> made;
  for (const ScriptFragment& fragment : step().fragments) {
    if (!begins_elsewhere(fragment)) continue;
    for (const ScriptFragment::Target& target : fragment.targets) made.insert(target.made.storage);
  }
  const bool reads_replaced = std::ranges::any_of(step().arguments, [&](const ScriptArgument& argument) {
    return argument.read && m_replaced.contains(argument.read->storage);
  });
  for (const ScriptArgument& argument : step().arguments) {
    const bool is_copy = argument.copied && m_replaced.contains(argument.copied->storage);
    if (argument.written != k_none && (is_copy || reads_replaced)) made.insert(argument.written);
  }
  m_replaced.merge(made);
}

/// Of values as they are now. Once: the fragment's graph goes into it.
Expected<std::unique_ptr<FragmentReference>> ProgramJudge::reference_of(ScriptFragment& fragment) const {
  std::vector<std::span<const std::byte>> inputs;
  for (const uint32_t storage : fragment.inputs) inputs.push_back(std::as_bytes(bytes_of(storage)));
  return FragmentReference::create(std::move(fragment.graph), std::move(inputs));
}

/// A few elements at least, and more while that takes no time.
ProgramJudge::Expectation ProgramJudge::expect(const ScriptFragment::Target& target, std::vector<int64_t> elements,
                                               FragmentReference& reference) {
  const double start = thread_seconds();
  std::vector<double> values(std::min(elements.size(), k_least_elements));
  reference.exact().many(target.value, std::span(elements).first(values.size()), values);
  while (values.size() < elements.size() && thread_seconds() - start < k_seconds_per_value) {
    values.push_back(reference.exact().at(target.value, elements[values.size()]));
  }
  return {std::move(elements), std::move(values), {}, !reference.status().ok(), thread_seconds() - start};
}

/// Those that are compared, of what ran: where some tasks did, those that they made.
std::vector<int64_t> ProgramJudge::made_elements(const ScriptFragment::Target& target) const {
  const ValueLayout& layout = target.made.layout;
  std::vector<int64_t> elements = chosen_elements(layout.dims);
  if (m_task_step == 1) return elements;
  const std::span<const uint8_t> bytes = bytes_of(target.made.storage);
  std::erase_if(elements, [&](int64_t each) { return is_poisoned(layout.dtype, element_in(bytes, layout, each)); });
  return elements;
}

Status ProgramJudge::check_fragment(size_t index) {
  ScriptFragment& fragment = step().fragments[index];
  std::unique_ptr<FragmentReference> reference;
  if (m_foreseen.empty()) {
    KILN_ASSIGN_OR_RETURN(reference, reference_of(fragment));
  }
  for (size_t i = 0; i < fragment.targets.size(); ++i) {
    const ScriptFragment::Target& target = fragment.targets[i];
    if (target.made.layout.elements() == 0) continue;
    const Expectation expected = reference ? expect(target, made_elements(target), *reference) : m_foreseen[index][i];
    if (expected.elements.empty()) return wrong(fmt::format("makes {}: nothing was written to it", target.name));
    if (expected.is_unknown && step().computes_indices) continue;
    KILN_RETURN_IF_ERROR(compare(fragment, i, expected, reference.get()));
  }
  return {};
}

/// Where rounding decides whether an element is finite, or a step on the way leaves its dtype's range, no kernel is to
/// blame. `reference`: null where uncertainties are with what is expected.
Status ProgramJudge::compare(const ScriptFragment& fragment, size_t index, const Expectation& expected,
                             FragmentReference* reference) {
  const ScriptFragment::Target& target = fragment.targets[index];
  const ValueLayout& layout = target.made.layout;
  const auto* made = reinterpret_cast<const std::byte*>(bytes_of(target.made.storage).data());
  const auto element_made = [&](int64_t element) { return load_element(layout.dtype, made, layout.place_of(element)); };
  const double scale = typical_of(expected.values);
  const auto allowed_for = [&](double want) {
    return allowed_error(layout.dtype, fragment, beyond_range(layout.dtype, want), scale);
  };
  ++m_verdict.values;
  m_verdict.elements += expected.values.size();
  std::vector<Doubt> doubts;
  std::vector<int64_t> elements;
  for (size_t i = 0; i < expected.values.size(); ++i) {
    const double want = expected.values[i];
    const Doubt element{i, element_made(expected.elements[i]), want, allowed_for(want)};
    if (is_within(layout.dtype, element.got, element.exact, element.allowed)) {
      note_error(element.difference(), element.allowed);
    } else {
      doubts.push_back(element);
      elements.push_back(expected.elements[i]);
    }
  }
  if (begins_elsewhere(fragment)) {
    m_verdict.undetermined += doubts.size();
    return {};
  }
  sort_worst_first(doubts);
  if (reference != nullptr) reference->ask_together(index, elements);
  for (const Doubt& doubt : doubts) {
    const int64_t element = expected.elements[doubt.index];
    const bool is_allowed = m_doubt_time.allows(doubt, &doubt == doubts.data(), k_slower_perturbed * expected.seconds);
    const std::optional<double> uncertain = reference == nullptr ? expected.uncertainties[doubt.index]
                                            : is_allowed         ? uncertainty(doubt, *reference, index, element)
                                                                 : std::nullopt;
    if (!uncertain || std::isinf(*uncertain) || comes_of_overflow(step().spec(), layout.dtype, doubt)) {
      ++m_verdict.undetermined;
    } else if (is_within(layout.dtype, doubt.got, doubt.exact, doubt.allowed + *uncertain)) {
      note_error(doubt.difference(), doubt.allowed + *uncertain);
    } else {
      return wrong(fmt::format("makes {}: element {} is {:.9g}, expected {:.9g}", target.name, element, doubt.got,
                               beyond_range(layout.dtype, doubt.exact)));
    }
  }
  return {};
}

/// How far rounding may take an element; nothing where that takes too long.
std::optional<double> ProgramJudge::uncertainty(const Doubt& doubt, FragmentReference& reference, size_t target,
                                                int64_t element) {
  const double start = thread_seconds();
  const auto excuses = [&](double known) { return doubt.difference() <= doubt.allowed + known; };
  const auto is_over = [&] { return m_doubt_time.is_over(doubt, start); };
  const double known =
      reference.uncertainty(target, element, [&](double so_far) { return excuses(so_far) || is_over(); });
  const bool is_known = excuses(known) || !is_over();
  m_doubt_time.spend(start);
  return is_known ? std::optional(known) : std::nullopt;
}

void ProgramJudge::note_error(double difference, double allowed) {
  if (allowed > 0 && std::isfinite(difference)) {
    m_verdict.max_error = std::max(m_verdict.max_error, difference / allowed);
  }
}

Status ProgramJudge::check_output(uint32_t output, const ValueLayout& layout, std::span<const uint8_t> bytes) {
  const ScriptCell& made = m_script.outputs[output];
  if (layout.elements() == 0) return {};
  if (bytes_of(made.storage).size() < made.layout.bytes())
    return error(StatusCode::internal, "program: output {} is made by no launch", output);
  if (is_at(made.storage, bytes) && layout.lies_as(made.layout)) return {};
  settle_at(bytes);
  const std::span<const uint8_t> then = bytes_of(made.storage);
  const int64_t at = find_difference(layout, bytes, made.layout, then);
  if (at < 0) return {};
  const auto load = [&](const ValueLayout& lies, std::span<const uint8_t> from) {
    return load_element(lies.dtype, reinterpret_cast<const std::byte*>(from.data()), lies.place_of(at));
  };
  return error(StatusCode::internal, "program: output {}: element {} is {:.9g} at the end, expected {:.9g}", output, at,
               load(layout, bytes), load(made.layout, then));
}

}  // namespace kiln
