#pragma once

#include <vector>

#include "backends/cpu/compile/emit/launch_numbers.h"
#include "backends/cpu/compile/gemm/blocking.h"

namespace kiln::cpu {

/// A product, in the form that is compiled, whose numbers were opened: extents, and what its bodies say of sizes.
struct SizedGemm {
  KernelSpec form;
  LaunchNumbers launch;
  LaunchNumbers::Place tasks = 0;  // they share the tiles of rows of all slabs evenly
  LaunchNumbers::Place m = 0, n = 0, k = 0;
  std::vector<LaunchNumbers::Place> batch;
  BodyNumbers a, b, epilogue;

  static SizedGemm open(const KernelSpec& oriented, ReadA read_a, ReadB read_b, int64_t tasks);
  /// None of its numbers is the launch's.
  static SizedGemm closed(const KernelSpec& oriented);
  /// Which numbers of `body`, one of the product's, are the launch's; which of an access of one of them.
  const BodyNumbers& of(const GemmSpec& gemm, const Body& body) const;
  const BodyNumbers::OfAccess* of(const GemmSpec& gemm, const Access& access) const;
};

}  // namespace kiln::cpu
