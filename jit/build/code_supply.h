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

/// A plan whose choices have won a race, as its artifact has it.
struct SuppliedPlan {
  Digest key;
  std::vector<uint8_t> bytes;
};

/// Code that a build need not make though the mapped cache does not have it: other sources have it, or another build makes
/// it. Also plans that won races elsewhere. Threading: one thread.
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

  /// The plans under these keys whose choices have raced, as far as other sources have them.
  virtual Expected<std::vector<SuppliedPlan>> raced_plans(std::span<const Digest> keys) = 0;

  /// Hands over what the asker made.
  virtual Status give(std::vector<SuppliedCode> made) = 0;
};

}  // namespace kiln
