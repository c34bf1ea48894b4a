#pragma once

#include <string>
#include <vector>

namespace kiln::cuda_emulator {

/// A mistake that someone could make in a kernel: `pattern` (ECMAScript) finds its places in any kernel's text, `by` is
/// what would stand there.
struct Mistake {
  std::string name;
  std::string pattern;
  std::string by;
};

/// Kinds of mistakes in the ways of waiting, ordering, addressing and counting that the device has. They name the
/// prelude's functions and the templates' idioms, never a kernel.
const std::vector<Mistake>& mistakes();

/// `text` with the mistake made at one place, for each place.
std::vector<std::string> mutants_of(const std::string& text, const Mistake& mistake);

}  // namespace kiln::cuda_emulator
