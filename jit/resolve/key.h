#pragma once

#include <charconv>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "backends/backend.h"
#include "base/digest.h"
#include "jit/run/sized_numbers.h"

namespace kiln {

/// What an entry of the cache is found by: named parts, and the digest over all of them. docs/keys.md lists
/// every part and why it is one. `kiln explain` compares two keys part by part, so values are short and
/// printable.
struct Key {
  struct Part {
    std::string name;
    std::string value;
    bool operator==(const Part&) const = default;
  };
  std::vector<Part> parts;

  /// The digest of to_json(): that text is the key's canonical bytes.
  Digest digest() const;
  /// {"level":"program",…} in the order of the parts.
  std::string to_json() const;
};

/// Whether what a key leads to was checked on a device of its target, or only compiled, because there was none where it
/// was made. Such an entry is bound to no driver, and runs only when it has been checked after all (docs/keys.md).
enum class Proof : uint8_t { verified, deferred };

/// Target::threads as the key's part "threads" has it; 0 for what is no such part.
inline uint32_t threads_in(std::string_view part) {
  uint32_t threads = 0;
  std::from_chars(part.data(), part.data() + part.size(), threads);
  return threads;
}

/// graph → program. `graph` is Canonical::digest of the graph with every symbol bound.
Key program_key(const Digest& graph, const Target& target, Proof proof = Proof::verified);
/// graph of symbols → the program for these ranges of their sizes. `graph` is Canonical::digest of the graph as it is.
Key sized_program_key(const Digest& graph, std::span<const SizeRange> ranges, const Target& target);
/// region → plan. `region` is RegionClass::digest.
Key plan_key(const Digest& region, const Target& target, Proof proof = Proof::verified);
/// kernel spec → code. `spec` is one of Plan::digests, `toolchain` CompileBackend::toolchain().
Key code_key(const Digest& spec, const Target& target, const std::string& toolchain, Proof proof = Proof::verified);
/// kernel spec on a machine → the record of its candidates' race. `machine`: to_string(Machine).
Key tuning_key(const Digest& spec, const Target& target, const std::string& machine);
/// region on a machine → the record of its plans' race.
Key plan_tuning_key(const Digest& region, const Target& target, const std::string& machine);
/// kernels of a family, of about these sizes, on a machine → the record of the latest race among them. The texts are those
/// of a Neighbourhood (autotune/neighbourhood.h).
Key near_key(const std::string& family, const std::string& sizes, const Target& target, const std::string& machine);
/// Opaque bytes of a framework → capture.
Key capture_key(std::span<const uint8_t> bytes);

}  // namespace kiln
