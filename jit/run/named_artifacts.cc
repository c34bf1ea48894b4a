#include "jit/run/named_artifacts.h"

#include "base/flatbuffer_values.h"
#include "jit/run/artifact_digest.h"
#include "jit/run/program_generated.h"

namespace kiln {
namespace {

template <typename Table>
std::vector<Digest> named_by(std::span<const uint8_t> bytes,
                             const flatbuffers::Vector<const fb::ArtifactDigest*>* (Table::*names)() const) {
  std::vector<Digest> digests;
  const auto* table = verified<Table>(bytes);
  if (table == nullptr) return digests;
  const auto* list = (table->*names)();
  for (uint32_t i = 0; i < size_of_list(list); ++i) digests.push_back(to_digest(*list->Get(i)));
  return digests;
}

}  // namespace

std::vector<Digest> plans_named_by(std::span<const uint8_t> program) {
  return named_by<fb::Program>(program, &fb::Program::plans);
}

std::vector<Digest> codes_named_by(std::span<const uint8_t> plan) { return named_by<fb::Plan>(plan, &fb::Plan::codes); }

bool is_raced_plan(std::span<const uint8_t> plan) {
  const auto* table = verified<fb::Plan>(plan);
  return table != nullptr && table->choice_generation() > 0;
}

bool is_tuned_program(std::span<const uint8_t> program) {
  const auto* table = verified<fb::Program>(program);
  return table == nullptr || table->is_tuned();
}

}  // namespace kiln
