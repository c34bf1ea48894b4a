#pragma once

#include <string>
#include <vector>

#include "backends/backend.h"
#include "base/digest.h"
#include "frontend/ir/graph.h"

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

  /// Of to_json(), which are thus the key's canonical bytes.
  Digest digest() const;
  /// {"level":"program",…} in the order of the parts.
  std::string to_json() const;
};

/// graph → program. `graph` is canonical with every symbol bound.
Key program_key(const Graph& graph, const Target& target);
/// region → plan. `region` is as extract gives it: canonical.
Key plan_key(const Graph& region, const Target& target);
/// kernel spec → code.
Key code_key(const KernelSpec& spec, const Target& target);
/// Opaque bytes of a framework → capture.
Key capture_key(std::span<const uint8_t> bytes);

}  // namespace kiln
