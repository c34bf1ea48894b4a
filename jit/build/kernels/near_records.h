#pragma once

#include <span>
#include <string>
#include <vector>

#include "autotune/neighbourhood.h"
#include "jit/build/kernels/choose_kernels.h"

namespace kiln {

/// A schedule, and the kernel whose race it won.
struct NearSchedule {
  Schedule schedule;
  std::string origin;
};

/// The records of a machine's races by where their kernels lie: one of each neighbourhood, the latest. Found in the cache,
/// and among what was just made.
///
/// Ownership: refers to all that it is made with. Errors: what is damaged, or of another version, is not there.
class NearRecords {
 public:
  /// `machine`: to_string(Machine).
  NearRecords(const Target& target, const std::string& machine, Published& published, ChosenKernels& chosen)
      : m_target(target), m_machine(machine), m_published(published), m_chosen(chosen) {}

  /// Winners around the spec, the nearest first, at most `most`, each once and none of `known`. Whether one fits the spec
  /// is for the compiler to say.
  /// Cost: a look into the cache for each of around().
  std::vector<NearSchedule> schedules(const KernelSpec& spec, std::span<const Schedule> known, size_t most) const;

  /// Has the spec's neighbourhood lead to this record, which is one of the chosen artifacts.
  void add(const KernelSpec& spec, const Digest& record);

 private:
  Key key_of(const Neighbourhood& place) const;
  std::optional<PublishedRecord> find(const Digest& key) const;

  const Target& m_target;
  const std::string& m_machine;
  Published& m_published;
  ChosenKernels& m_chosen;
};

}  // namespace kiln
