#pragma once

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "backends/backend.h"
#include "backends/cpu/compile/emit/emitter.h"
#include "base/digest.h"
#include "frontend/kernel/kernel_spec.h"

namespace kiln::cpu {

/// Numbers of a spec that code takes from its launch, in the order in which they were opened.
class LaunchNumbers {
 public:
  /// One of them: which, counted from 1, less than 0 where what is carried is to be negated. 0: no number of a launch.
  using Place = int32_t;

  /// Opens a number: the spec no longer says it, but that it is one, and which sign it has. What is below `least` stays, since
  /// code may be another for it, as does what no tensor reaches.
  Place open(int64_t& number, int64_t least = 2);
  /// Has the launch carry, before anything else, how many tasks it has, which is none of the spec's numbers.
  Place carry_tasks(int64_t tasks);
  /// The number at `place`, or else `constant`.
  llvm::Value* value(Emitter& e, Place place, int64_t constant) const;
  /// Loads what the launch carries; to be called in a function before value().
  void load(Emitter& e, llvm::Value* extents);
  /// Puts other values, those of another function, in the place of what was loaded, which it gives.
  Values exchange_loaded(Values loaded) { return std::exchange(m_loaded, std::move(loaded)); }

  const std::vector<int64_t>& carried() const { return m_carried; }
  bool carries_tasks() const { return m_carries_tasks; }

 private:
  std::vector<int64_t> m_carried;
  bool m_carries_tasks = false;
  Values m_loaded;
};

/// A spec as one of those that the schedule's code serves: `opened` is its kernel once `launch` has numbers of it.
SizedSpec sized_spec(const KernelSpec& spec, decltype(KernelSpec::kernel) opened, const LaunchNumbers& launch,
                     Schedule schedule);

/// Writes the loop over a launch's pieces of work that the tasks from entry.first_task to entry.last_task are: a task each, or
/// where the launch says how many there are, even shares of as many tasks as this gives.
uint64_t emit_pieces(Emitter& e, const Emitter::Entry& entry, llvm::Value* pieces,
                     const std::function<void(llvm::Value* piece)>& body);

/// Which numbers of a body its launch carries.
struct BodyNumbers {
  const LaunchNumbers* launch = nullptr;
  struct OfAccess {
    LaunchNumbers::Place offset = 0;
    std::vector<LaunchNumbers::Place> strides;
  };
  std::vector<OfAccess> accesses;
  std::vector<LaunchNumbers::Place> constants;  // by expression

  /// Opens offsets, integer constants and strides; of strides along the lanes those that are gathered by whatever they are.
  static BodyNumbers open(Body& body, int lane_dim, LaunchNumbers& launch);
  static BodyNumbers closed(const Body& body);
};

}  // namespace kiln::cpu
