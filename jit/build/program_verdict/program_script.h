#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/expected.h"
#include "frontend/fuse/plan.h"
#include "frontend/regions/regions.h"
#include "jit/build/program_verdict/value_layout.h"

namespace kiln {

/// What a program was made from: the client's graph, and what became of it on the way. All must outlive the script.
struct ProgramOrigin {
  const Graph& client;     // as it was asked for
  const Graph& canonical;  // what the key is of
  const Graph& settled;    // what was cut into regions: views sunk, layouts settled
  const RegionPartition& partition;
  std::span<const Plan* const> plans;  // one per class of the partition
};

/// Contents that are kept of a run: a graph input, or what one launch stored. Storage number i is the client's input i
/// while there are inputs; later ones are made by launches, in order.
struct ScriptStorage {
  uint64_t bytes = 0;
  uint32_t first_step = 0, last_step = 0;  // made, and read last
  bool has_twin = false;                   // another launch, or another argument of this one, makes the same value
};

/// A value found by the graph: which contents, and how it lies there.
struct ScriptCell {
  ValueLayout layout;
  uint32_t storage = k_none;
};

/// A part of a graph whose inputs were made earlier in the run: the reference for values that were just made.
struct ScriptFragment {
  struct Target {
    ValueId value = k_none;  // of `graph`
    ScriptCell made;
    std::string name;
  };
  Graph graph;
  std::vector<uint32_t> inputs;  // storages
  std::vector<Target> targets;
  int64_t reduction_length = 1;  // terms that are summed into an element, through all launches between
  DType coarsest = DType::f64;   // of the targets, and of values between that no op of the client's stands for
};

/// What one argument of a launch is said to hold.
struct ScriptArgument {
  BufferRole role = BufferRole::input;
  ValueLayout layout;
  std::string name;
  std::optional<ScriptCell> read;    // what it must hold before: of input and inout
  uint32_t written = k_none;         // the storage that is made: of output and inout
  std::optional<ScriptCell> copied;  // for a launch that only copies: what is made must equal this
};

/// One launch of the program.
struct ScriptStep {
  uint32_t call = 0, launch = 0;  // of the partition's regions, of the plan's launches
  const Plan* plan = nullptr;
  std::vector<ScriptArgument> arguments;
  std::vector<ScriptFragment> fragments;
  /// Addresses come from indices that the graph itself computes: they may lie outside on sample data.
  bool computes_indices = false;

  const KernelSpec& spec() const { return plan->specs[plan->launches[launch].spec]; }
};

/// What a linked program must do, launch by launch, said in terms of the client's graph alone: which values each launch
/// finds where, which it leaves where, and what they must be. Nothing here comes from the linked program.
struct ProgramScript {
  std::vector<ScriptStep> steps;
  std::vector<ScriptStorage> storages;
  std::vector<ScriptCell> outputs;    // of the client's graph, as made; the caller's layout is the graph's
  std::vector<int64_t> index_bounds;  // per input of the client's graph: 0 where it addresses nothing
  std::vector<bool> becomes_float;    // per input: an integer that is computed with and then made a float, a mask
  uint64_t kept_bytes = 0;            // most that may be kept at one time, inputs apart

  /// Errors: internal when what became of the graph on the way does not mean what the graph does.
  static Expected<ProgramScript> write(const ProgramOrigin& origin);
};

}  // namespace kiln
