#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "jit/build/kernels/fragment_reference.h"
#include "jit/build/kernels/kernel_builder.h"
#include "jit/build/program_verdict/launch_device.h"
#include "jit/build/program_verdict/program_script.h"
#include "jit/build/program_verdict/program_verdict.h"
#include "jit/run/in_place.h"
#include "verdict/doubts.h"

namespace kiln {

/// Watches a program's launches: holds what was made, and compares with it what each launch reads, writes and computes.
/// Internal to the verdict over programs. Ownership: script and verdict outlive it; counts are added to the verdict.
class ProgramJudge final : public LaunchObserver {
 public:
  ProgramJudge(const ProgramOrigin& origin, ProgramScript& script, StandIns stand_ins, ProgramVerdict& verdict);

  /// The memory of the client's inputs, in order.
  void set_inputs(std::vector<std::span<uint8_t>> inputs) { m_inputs = std::move(inputs); }
  /// The allocations of the client's inputs and outputs, in order.
  void set_places(const std::vector<uint32_t>& inputs, const std::vector<uint32_t>& outputs);
  /// Memory that launches may write to.
  void allow_writing(uint32_t allocation) { m_writable.insert(allocation); }
  /// Which outputs could have been made over which inputs, by what launches were given and by their kernels' specs.
  const InPlace& in_place() const { return m_in_place; }
  size_t steps_done() const { return m_step; }
  bool is_inconclusive() const { return m_inconclusive; }

  Expected<std::vector<Given>> begin(const Launch& launch) override;
  bool stands_in() const override { return m_stands_in; }
  uint32_t timeout_ms() const override { return run_timeout_ms(m_script.steps[m_step].spec()); }
  uint32_t task_step() const override { return m_task_step; }
  Status end(LaunchStatus reported) override;
  /// `layout` is the caller's; `bytes` what the caller reads.
  Status check_output(uint32_t output, const ValueLayout& layout, std::span<const uint8_t> bytes);

 private:
  /// Sample data in place of what no launch computed.
  struct StandIn {
    SampleSource source;
    SampleMapping mapping;
  };
  /// Where the contents of a storage were made, and what they were before a launch wrote there again.
  struct Made {
    std::span<uint8_t> bytes;
    bool is_overwritten = false;
    std::optional<std::vector<uint8_t>> copy = {};
    std::optional<StandIn> stand_in = {};  // the contents; they are not in the memory
  };
  /// What a launch must make of a value, in some of its elements.
  struct Expectation {
    std::vector<int64_t> elements;
    std::vector<double> values;         // of the first of them
    std::vector<double> uncertainties;  // of those; empty: computed when one is asked for
    bool is_unknown = false;            // of some it is not known what they must be
    double seconds = 0;                 // CPU time that the values took
  };
  ScriptStep& step() { return m_script.steps[m_step]; }
  const ScriptStep& step() const { return m_script.steps[m_step]; }
  /// The contents of a storage, until what stands in for them is put into the memory.
  std::span<const uint8_t> bytes_of(uint32_t storage) const;
  /// Whether the contents of a storage are said to be in the memory from `bytes` on.
  bool is_at(uint32_t storage, std::span<const uint8_t> bytes) const;
  /// Puts what stands in for the contents into the memory.
  static void settle(Made& made);
  /// The same for all contents that are said to be there.
  void settle_at(std::span<const uint8_t> bytes);
  void release(Made& made);
  Status wrong(std::string what) const;
  bool can_stand_in(const Launch& launch) const;
  bool is_replaceable() const;
  bool is_read_later(const ScriptArgument& made) const;
  Expected<StandIn> stand_in(size_t argument) const;
  Status replace_what_was_made();
  std::vector<Given> give();
  Status judge_what_was_made();
  Status check_places(std::span<const Argument> arguments);
  Status check_reads();
  void follow_places();
  bool is_written_over(const Made& made) const;
  bool overwrites_what_it_reads() const;
  Status foresee();
  bool is_needed_later(uint32_t storage) const;
  void remember_what_is_overwritten();
  uint32_t affordable_task_step() const;
  std::vector<int64_t> chosen_elements(const std::vector<int64_t>& dims) const;
  void poison_targets();
  Status note_what_was_made();
  void tame_what_was_made();
  bool begins_elsewhere(const ScriptFragment& fragment) const;
  void follow_what_was_replaced();
  Expected<std::unique_ptr<FragmentReference>> reference_of(ScriptFragment& fragment) const;
  static Expectation expect(const ScriptFragment::Target& target, std::vector<int64_t> elements,
                            FragmentReference& reference);
  std::vector<int64_t> made_elements(const ScriptFragment::Target& target) const;
  Status check_fragment(size_t index);
  Status compare(const ScriptFragment& fragment, size_t target, const Expectation& expected,
                 FragmentReference* reference);
  std::optional<double> uncertainty(const Doubt& doubt, FragmentReference& reference, size_t target, int64_t element);
  void note_error(double difference, double allowed);

  ProgramScript& m_script;
  const StandIns m_stand_ins;
  ProgramVerdict& m_verdict;
  std::vector<std::span<uint8_t>> m_inputs;
  std::set<uint32_t> m_writable;                  // allocations
  std::map<uint32_t, DataFlow::Access> m_places;  // of inputs and outputs, by allocation
  InPlace m_in_place;
  std::set<uint32_t> m_replaced;  // storages: other numbers than those that were judged
  std::vector<Made> m_made;       // by storage; empty before they are made and when nothing reads them any more
  std::vector<std::vector<uint32_t>> m_released;  // storages, by the step that reads them last
  std::vector<Argument> m_arguments;              // of the launch that runs
  std::chrono::steady_clock::time_point m_began;
  size_t m_step = 0;
  uint32_t m_task_step = 1;  // of the launch that runs
  DoubtTime m_doubt_time;
  std::vector<std::vector<Expectation>> m_foreseen;  // of its fragments' targets; empty: computed once it has run
  /// What ran and agreed with its reference, by step.
  struct Judged {
    const Image* image = nullptr;
    std::vector<int64_t> extents;
  };
  std::vector<uint32_t> m_repeats;  // find_repeated_launches()
  std::vector<std::optional<Judged>> m_judged;
  Judged m_running;
  bool m_stands_in = false;
  bool m_inconclusive = false;
};

}  // namespace kiln
