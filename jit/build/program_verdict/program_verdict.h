#pragma once

#include <functional>
#include <span>
#include <string>

#include "base/digest.h"
#include "jit/build/program_verdict/program_script.h"
#include "verdict/candidate_runner.h"

namespace kiln {

/// A program as it will be published: its bytes, and where the plans and kernels that it names are found.
struct LinkedProgram {
  struct Kernel {
    Image image;
    uint32_t buffer_count = 0;
  };
  std::span<const uint8_t> program;
  std::function<Expected<std::span<const uint8_t>>(const Digest&)> plan;
  std::function<Expected<Kernel>(const Digest&)> kernel;
};

/// How a linked program did.
struct ProgramVerdict {
  Status status;              // ok, or what is wrong: launch, value, element, got, expected
  std::string not_judged;     // why the program was not judged, or not to its end; empty: it was
  uint64_t launches = 0;      // run, or stood in for
  uint64_t stood_in = 0;      // of the launches: repeat one that was judged, and were not run
  uint64_t values = 0;        // held against the reference
  uint64_t elements = 0;      // of them
  uint64_t undetermined = 0;  // of the elements: left out, rounding or a dtype's range decides whether they are finite
  uint64_t bytes = 0;         // memory that was needed
  double max_error = 0;       // largest error found, as a share of the tolerance
  double run_ms = 0;          // in the worker
  double reference_ms = 0;
  std::vector<std::vector<LaunchArgument>> arguments;  // of each launch that ran, in the runner's prepared buffers
};

/// Where sample data lies in place of what no launch computed: in pools, which takes no memory, or in the program's own, for
/// who times its launches afterwards.
enum class StandIns : uint8_t { in_pools, in_place };

/// Runs the linked program on sample data in the runner's worker, one launch at a time, and holds what each launch finds
/// and leaves against the client's graph (docs/verdict.md):
///
/// - what a launch reads is, bit for bit, what the graph says was made before, wherever the program put it;
/// - demanded elements of what it makes agree with the f64 reference over the values made before;
/// - nothing it writes overlaps anything else it was given, and the compared elements held poison before;
/// - at the end, each output holds in the caller's layout what was made for it, and an output that is an input is that
///   input.
///
/// Kernels are mapped in the worker alone. Cost is linear in what the program reads and writes, besides a bounded
/// number of elements of each value. Of a launch that repeats one that was judged (repeated_launches.h) all but what it
/// computes is judged. Errors are in the verdict.
/// A program that needs more memory than `memory_max_bytes` is not judged.
ProgramVerdict judge_program(const ProgramOrigin& origin, const LinkedProgram& linked, CandidateRunner& runner,
                             uint64_t memory_max_bytes, StandIns stand_ins = StandIns::in_pools);

}  // namespace kiln
