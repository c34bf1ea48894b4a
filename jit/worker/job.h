#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "base/expected.h"
#include "base/frame.h"
#include "jit/build/build.h"

/// What the daemon and a compile worker say to each other, as frames (base/frame.h) of FlatBuffers (job.fbs).
namespace kiln::job {

struct JobProgress {
  std::string stage;
  std::string item;
  uint64_t done = 0;
  uint64_t total = 0;
};

struct JobFailure {
  Status status;
};

/// CodeSupply::ask and its answer.
struct CodeQuestion {
  std::vector<Digest> keys;
  bool waits = false;
  bool judges = false;
};

/// CodeSupply::give.
struct MadeCode {
  std::vector<SuppliedCode> made;
};

/// BuildEnvironment::keep.
struct Found {
  BuildResult result;
};

/// CodeSupply::find and its answer.
struct EntryQuestion {
  std::vector<Digest> keys;
  ArtifactKind kind = ArtifactKind::code;
  bool raced = false;
};
struct EntryAnswer {
  std::vector<SuppliedEntry> entries;
};

/// The order is the frame's kind.
using JobMessage = std::variant<BuildRequest, JobProgress, BuildResult, JobFailure, CodeQuestion, CodeAnswer, MadeCode,
                                EntryQuestion, EntryAnswer, Found>;

std::vector<uint8_t> encode(const JobMessage& message);
/// Errors: invalid_argument; a worker that sends such a thing is treated as crashed.
Expected<JobMessage> decode(const Frame& frame);

}  // namespace kiln::job
