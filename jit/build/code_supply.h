#pragma once

#include <span>
#include <string>
#include <vector>

#include "base/digest.h"
#include "base/expected.h"
#include "jit/build/artifact.h"

namespace kiln {

/// Code that passed its verdict, or a candidate that is to have one, and the key that leads to it.
struct SuppliedCode {
  Digest key;
  uint32_t generation = 0;
  BuiltArtifact artifact;
  std::string key_parts = {};  // what the key is the digest of; empty where its asker knows them
  bool is_proven = true;       // false: a candidate
  std::string rejected = {};   // of made code: what the verdict said against the first candidate; empty: it passed
};

struct CodeAnswer {
  std::vector<SuppliedCode> found;  // what is not proven is the asker's to judge, and to make where it does not pass
  std::vector<Digest> elsewhere;    // keys whose code another build makes at this moment
};

/// What a key leads to elsewhere.
struct SuppliedEntry {
  Digest key;
  uint32_t generation = 0;
  BuiltArtifact artifact;
};

/// What a build need not make though the mapped cache does not have it: other sources have it, or another build makes it.
/// Threading: one thread.
class CodeSupply {
 public:
  CodeSupply() = default;
  CodeSupply(const CodeSupply&) = delete;
  CodeSupply& operator=(const CodeSupply&) = delete;
  virtual ~CodeSupply() = default;

  /// What there is of these keys. What is neither found nor elsewhere is the asker's to make, and others wait for it: so it
  /// is made before anything is waited for. `waits`: until other builds have made what they make, or given it up; nothing is
  /// elsewhere then. `judges`: whether candidates are of use to the asker; without, all that is found is proven.
  virtual Expected<CodeAnswer> ask(std::span<const Digest> keys, bool waits, bool judges) = 0;

  /// What sources have of these keys and need not be proven here; nobody's to make. `raced`: only what has won a race
  /// there, and records.
  virtual Expected<std::vector<SuppliedEntry>> find(std::span<const Digest> keys, ArtifactKind kind, bool raced) = 0;

  /// Hands over what the asker made.
  virtual Status give(std::vector<SuppliedCode> made) = 0;
};

}  // namespace kiln
