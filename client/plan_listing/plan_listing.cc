#include "client/plan_listing/plan_listing.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/flatbuffer_values.h"
#include "frontend/kernel/kernel_spec.h"
#include "jit/run/artifact_digest.h"
#include "jit/run/program_generated.h"

namespace kiln {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view k_places[] = {"input", "output", "scratch", "constant"};

Status misread(std::string_view what) {
  return error(StatusCode::data_loss, "{} is not what this build writes: kiln verify looks through all entries", what);
}

/// A program or plan in the mapped cache. Its bytes stay as long as the cache is open.
template <typename Table>
Expected<const Table*> read(CacheDirectory& cache, const Digest& digest, kiln_artifact_kind kind) {
  kiln_view view;
  if (const kiln_miss miss = cache.find_digest(digest, kind, view); miss != KILN_HIT) {
    return error(StatusCode::not_found, "artifact {} cannot be read: {}", digest.to_short(), kiln_miss_name(miss));
  }
  flatbuffers::Verifier verifier(view.payload, view.header.payload_size);
  if (!verifier.VerifyBuffer<Table>(nullptr)) return misread(digest.to_short());
  return flatbuffers::GetRoot<Table>(view.payload);
}

/// "f32[64, 256]{1, 64}", as in the text form.
std::string tensor_text(const fb::Tensor* tensor) {
  if (tensor == nullptr || tensor->dtype() >= k_dtype_count) return "";
  const auto numbers = [](const auto* list) {
    return list ? std::vector<int64_t>(list->begin(), list->end()) : std::vector<int64_t>();
  };
  const auto strides = numbers(tensor->strides());
  return fmt::format("{}[{}]{}", to_string(static_cast<DType>(tensor->dtype())),
                     fmt::join(numbers(tensor->dims()), ", "),
                     strides.empty() ? "" : fmt::format("{{{}}}", fmt::join(strides, ", ")));
}

Json buffer_json(const fb::Buffer& buffer, std::string_view place, uint32_t index) {
  Json shown = {{"place", place}};
  const bool is_argument = buffer.place() == fb::Place::input || buffer.place() == fb::Place::output;
  if (is_argument) {
    shown["index"] = index;
  } else {
    shown["offset"] = buffer.offset();
    shown["bytes"] = buffer.bytes();
  }
  if (const std::string tensor = tensor_text(buffer.tensor()); !tensor.empty()) shown["tensor"] = tensor;
  return shown;
}

/// The buffers of a plan that a program calls are what the call names; by itself, inputs and outputs of its region.
class PlanReader {
 public:
  PlanReader(const fb::Plan& plan, const Digest& digest) : m_plan(plan), m_digest(digest) {
    for (size_t i = 0; i < size_of_list(plan.buffers()); ++i) {
      const fb::Buffer& buffer = *plan.buffers()->Get(i);
      if (buffer.place() == fb::Place::output) m_inputs = std::min(m_inputs, buffer.index());
    }
  }

  /// `arguments`: of the call; null without one.
  Status add_launches(const Json* arguments, Json& launches) const {
    for (size_t i = 0; i < size_of_list(m_plan.launches()); ++i) {
      const fb::Launch& launch = *m_plan.launches()->Get(i);
      if (launch.code() >= size_of_list(m_plan.codes()) || launch.code() >= size_of_list(m_plan.names()) ||
          size_of_list(launch.buffers()) != size_of_list(launch.roles())) {
        return misread(m_digest.to_short());
      }
      Json shown = {{"kernel", m_plan.names()->Get(launch.code())->str()},
                    {"code", to_digest(*m_plan.codes()->Get(launch.code())).to_hex()},
                    {"plan", m_digest.to_hex()},
                    {"reads", Json::array()},
                    {"writes", Json::array()}};
      for (size_t b = 0; b < size_of_list(launch.buffers()); ++b) {
        KILN_ASSIGN_OR_RETURN(const Json buffer, buffer_of(launch.buffers()->Get(b), arguments));
        const auto role = static_cast<BufferRole>(launch.roles()->Get(b));
        if (role != BufferRole::output) shown["reads"].push_back(buffer);
        if (role != BufferRole::input) shown["writes"].push_back(buffer);
      }
      launches.push_back(std::move(shown));
    }
    return {};
  }

  Json arguments(fb::Place place) const {
    Json list = Json::array();
    for (size_t i = 0; i < size_of_list(m_plan.buffers()); ++i) {
      const fb::Buffer& buffer = *m_plan.buffers()->Get(i);
      if (buffer.place() == place) list.push_back(argument_json(buffer));
    }
    return list;
  }

 private:
  Json argument_json(const fb::Buffer& buffer) const {
    const bool is_output = buffer.place() == fb::Place::output;
    return buffer_json(buffer, is_output ? "output" : "input", is_output ? buffer.index() - m_inputs : buffer.index());
  }

  Expected<Json> buffer_of(uint32_t index, const Json* arguments) const {
    if (index >= size_of_list(m_plan.buffers())) return misread(m_digest.to_short());
    const fb::Buffer& buffer = *m_plan.buffers()->Get(index);
    const bool is_argument = buffer.place() == fb::Place::input || buffer.place() == fb::Place::output;
    if (is_argument && arguments == nullptr) return argument_json(buffer);
    if (is_argument && buffer.index() < arguments->size()) return arguments->at(buffer.index());
    if (is_argument || buffer.place() > fb::Place::constant) return misread(m_digest.to_short());
    const std::string_view place = k_places[static_cast<size_t>(buffer.place())];
    return buffer_json(buffer, arguments == nullptr ? std::string(place) : fmt::format("plan {}", place), 0);
  }

  const fb::Plan& m_plan;
  const Digest m_digest;
  uint32_t m_inputs = UINT32_MAX;  // every output is written, so the first argument that is one follows the inputs
};

Json tensors(std::string_view place, const flatbuffers::Vector<flatbuffers::Offset<fb::Tensor>>* list) {
  Json shown = Json::array();
  for (size_t i = 0; i < size_of_list(list); ++i) {
    shown.push_back({{"place", place}, {"index", i}, {"tensor", tensor_text(list->Get(i))}});
  }
  return shown;
}

Expected<Json> call_arguments(const fb::Program& program, const fb::Call& call) {
  Json arguments = Json::array();
  for (size_t i = 0; i < size_of_list(call.arguments()); ++i) {
    const uint32_t index = call.arguments()->Get(i);
    if (index >= size_of_list(program.buffers())) return misread("the program");
    const fb::Buffer& buffer = *program.buffers()->Get(index);
    if (buffer.place() > fb::Place::constant) return misread("the program");
    arguments.push_back(buffer_json(buffer, k_places[static_cast<size_t>(buffer.place())], buffer.index()));
  }
  return arguments;
}

}  // namespace

Expected<Json> plan_listing(CacheDirectory& cache, const Digest& digest) {
  KILN_ASSIGN_OR_RETURN(const fb::Plan* plan, read<fb::Plan>(cache, digest, KILN_ARTIFACT_PLAN));
  const PlanReader reader(*plan, digest);
  Json shown = {{"inputs", reader.arguments(fb::Place::input)},
                {"outputs", reader.arguments(fb::Place::output)},
                {"scratch_bytes", plan->scratch_bytes()},
                {"constant_bytes", size_of_list(plan->constants())},
                {"launches", Json::array()}};
  KILN_RETURN_IF_ERROR(reader.add_launches(nullptr, shown["launches"]));
  return shown;
}

Expected<Json> program_listing(CacheDirectory& cache, const Digest& digest) {
  KILN_ASSIGN_OR_RETURN(const fb::Program* program, read<fb::Program>(cache, digest, KILN_ARTIFACT_PROGRAM));
  Json shown = {{"inputs", tensors("input", program->inputs())},
                {"outputs", tensors("output", program->outputs())},
                {"scratch_bytes", program->scratch_bytes()},
                {"launches", Json::array()}};
  for (size_t i = 0; i < size_of_list(program->aliases()); ++i) {
    const fb::Alias& alias = *program->aliases()->Get(i);
    if (alias.output() < shown["outputs"].size()) shown["outputs"][alias.output()]["is_input"] = alias.input();
  }
  uint64_t plan_scratch = 0;
  for (size_t i = 0; i < size_of_list(program->calls()); ++i) {
    const fb::Call& call = *program->calls()->Get(i);
    if (call.plan() >= size_of_list(program->plans())) return misread(digest.to_short());
    const Digest name = to_digest(*program->plans()->Get(call.plan()));
    KILN_ASSIGN_OR_RETURN(const fb::Plan* plan, read<fb::Plan>(cache, name, KILN_ARTIFACT_PLAN));
    KILN_ASSIGN_OR_RETURN(const Json arguments, call_arguments(*program, call));
    KILN_RETURN_IF_ERROR(PlanReader(*plan, name).add_launches(&arguments, shown["launches"]));
    plan_scratch = std::max(plan_scratch, plan->scratch_bytes());
  }
  shown["plan_scratch_bytes"] = plan_scratch;
  return shown;
}

}  // namespace kiln
