#include "jit/exported/export_manifest.h"

#include <array>
#include <nlohmann/json.hpp>

#include "base/limits.h"

namespace kiln {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<std::string_view, 3> k_origins = {"input", "weights", "output"};

Status wrong(std::string_view what) { return error(StatusCode::data_loss, "what the export says of itself: {}", what); }

Json to_json(const ExportTensor& tensor) {
  return {{"name", tensor.name},
          {"dtype", to_string(tensor.layout.dtype)},
          {"shape", tensor.layout.dims},
          {"strides", tensor.layout.strides}};
}

Json to_json(const ExportPlace& place) {
  return {k_origins[static_cast<size_t>(place.origin)], place.index, place.offset};
}

Json to_json(const ExportResult& result) {
  Json json = to_json(result.place);
  json.push_back(result.strides);
  return json;
}

Json to_json(const ExportProgram& program) {
  return {{"target", program.target}, {"program", program.program.to_hex()}};
}

template <typename T>
Json list_of(const std::vector<T>& items) {
  Json list = Json::array();
  for (const T& item : items) list.push_back(to_json(item));
  return list;
}

/// `json[name]` as a T. Errors: data_loss when it is not there, or another thing.
template <typename T>
Expected<T> field(const Json& json, const char* name) {
  const auto found = json.find(name);
  if (!json.is_object() || found == json.end()) return wrong(fmt::format("it has no {}", name));
  const bool fits = std::is_same_v<T, Json>          ? found->is_array()
                    : std::is_same_v<T, std::string> ? found->is_string()
                                                     : found->is_number_unsigned();
  if (!fits) return wrong(fmt::format("{} is out of shape", name));
  if constexpr (std::is_same_v<T, uint32_t>) {
    if (found->template get<uint64_t>() > UINT32_MAX) return wrong(fmt::format("{} is too large", name));
  }
  return found->template get<T>();
}

Expected<std::vector<int64_t>> integers(const Json& list, const char* name) {
  if (!list.is_array()) return wrong(fmt::format("{} is no list", name));
  std::vector<int64_t> numbers;
  for (const Json& each : list) {
    if (!each.is_number_integer()) return wrong(fmt::format("{} has something that is no integer", name));
    numbers.push_back(each.get<int64_t>());
  }
  return numbers;
}

Expected<std::vector<int64_t>> integers_in(const Json& json, const char* name) {
  KILN_ASSIGN_OR_RETURN(const Json list, field<Json>(json, name));
  return integers(list, name);
}

Status read(const Json& json, ExportTensor& tensor) {
  KILN_ASSIGN_OR_RETURN(tensor.name, field<std::string>(json, "name"));
  KILN_ASSIGN_OR_RETURN(const std::string dtype, field<std::string>(json, "dtype"));
  KILN_ASSIGN_OR_RETURN(tensor.layout.dims, integers_in(json, "shape"));
  KILN_ASSIGN_OR_RETURN(tensor.layout.strides, integers_in(json, "strides"));
  const auto known = dtype_from_string(dtype);
  if (!known) return wrong(fmt::format("no dtype is called '{}'", dtype));
  tensor.layout.dtype = *known;
  return span_of(tensor.layout).status();
}

/// [origin, index, offset], and what comes after.
Status read_place(const Json& json, size_t size, ExportPlace& place) {
  const bool fits = json.is_array() && json.size() == size && json[0].is_string() && json[1].is_number_unsigned() &&
                    json[2].is_number_unsigned() && json[1].get<uint64_t>() <= UINT32_MAX;
  const auto origin = fits ? std::ranges::find(k_origins, json[0].get<std::string>()) : k_origins.end();
  if (origin == k_origins.end()) return wrong("a place is out of shape");
  place = {static_cast<ExportPlace::Origin>(origin - k_origins.begin()), json[1].get<uint32_t>(),
           json[2].get<uint64_t>()};
  return {};
}

Status read(const Json& json, ExportPlace& place) { return read_place(json, 3, place); }

Status read(const Json& json, ExportResult& result) {
  KILN_RETURN_IF_ERROR(read_place(json, 4, result.place));
  KILN_ASSIGN_OR_RETURN(result.strides, integers(json[3], "a result's strides"));
  return {};
}

Status read(const Json& json, ExportProgram& program) {
  KILN_ASSIGN_OR_RETURN(program.target, field<std::string>(json, "target"));
  KILN_ASSIGN_OR_RETURN(const std::string digest, field<std::string>(json, "program"));
  const auto known = Digest::from_hex(digest);
  if (!known) return wrong("a program is no digest");
  program.program = *known;
  return {};
}

template <typename T>
Status read_list(const Json& json, const char* name, std::vector<T>& items) {
  KILN_ASSIGN_OR_RETURN(const Json list, field<Json>(json, name));
  if (list.size() > limits::k_graph_values) return wrong(fmt::format("{} has {} entries", name, list.size()));
  for (const Json& each : list) KILN_RETURN_IF_ERROR(read(each, items.emplace_back()));
  return {};
}

Status read(const Json& json, ExportForm& form) {
  KILN_RETURN_IF_ERROR(read_list(json, "inputs", form.inputs));
  KILN_RETURN_IF_ERROR(read_list(json, "outputs", form.outputs));
  KILN_RETURN_IF_ERROR(read_list(json, "arguments", form.arguments));
  KILN_RETURN_IF_ERROR(read_list(json, "results", form.results));
  if (form.results.size() != form.outputs.size()) return wrong("outputs and results are of different number");
  return {};
}

/// The part that a manifest and a request for one have in common.
Status read_common(const Json& json, ExportManifest& manifest) {
  KILN_ASSIGN_OR_RETURN(const uint32_t version, field<uint32_t>(json, "version"));
  if (version != k_export_version) {
    return error(StatusCode::failed_precondition, "an export of version {}, expected {}; export the model anew",
                 version, k_export_version);
  }
  KILN_ASSIGN_OR_RETURN(manifest.weights.file, field<std::string>(json, "weights"));
  KILN_ASSIGN_OR_RETURN(const Json forms, field<Json>(json, "forms"));
  if (forms.empty() || forms.size() > limits::k_export_forms) {
    return error(StatusCode::resource_exhausted, "an export of {} forms, expected 1 to {}", forms.size(),
                 limits::k_export_forms);
  }
  for (const Json& each : forms) {
    KILN_RETURN_IF_ERROR(read(each, manifest.forms.emplace_back()));
    const ExportForm &form = manifest.forms.back(), &first = manifest.forms.front();
    if (form.inputs.size() != first.inputs.size() || form.outputs.size() != first.outputs.size()) {
      return wrong("its forms have different numbers of inputs or outputs");
    }
  }
  return {};
}

Expected<Json> parse(std::string_view text) {
  Json json = Json::parse(text, nullptr, false);
  if (!json.is_object()) return wrong("it is no JSON object");
  return json;
}

}  // namespace

Expected<uint64_t> span_of(const TensorLayout& layout) {
  if (layout.dims.size() > limits::k_tensor_rank || layout.dims.size() != layout.strides.size()) {
    return wrong(fmt::format("a tensor of rank {} with {} strides", layout.dims.size(), layout.strides.size()));
  }
  constexpr auto k_most = static_cast<uint64_t>(limits::k_tensor_elements);
  uint64_t last = 0;
  bool is_empty = false;
  for (size_t i = 0; i < layout.dims.size(); ++i) {
    const auto dim = static_cast<uint64_t>(layout.dims[i]), stride = static_cast<uint64_t>(layout.strides[i]);
    if (dim > k_most || stride > k_most) return wrong("a tensor of negative or absurd extents");
    is_empty |= dim == 0;
    if (dim > 1 && stride > 0 && dim - 1 > (k_most - last) / stride) return wrong("a tensor of absurd extents");
    if (dim > 1) last += (dim - 1) * stride;
  }
  return is_empty ? 0 : (last + 1) * size_of(layout.dtype);
}

std::string to_json(const ExportManifest& manifest) {
  Json json{{"version", k_export_version},
            {"program_version", manifest.program_version},
            {"generator", manifest.generator},
            {"weights", manifest.weights.file},
            {"weights_bytes", manifest.weights.bytes},
            {"weights_checksums", manifest.weights.checksums}};
  json["forms"] = Json::array();
  for (const ExportForm& form : manifest.forms) {
    json["forms"].push_back({{"inputs", list_of(form.inputs)},
                             {"outputs", list_of(form.outputs)},
                             {"arguments", list_of(form.arguments)},
                             {"results", list_of(form.results)},
                             {"programs", list_of(form.programs)}});
  }
  return json.dump();
}

Expected<ExportManifest> manifest_from_json(std::string_view text) {
  KILN_ASSIGN_OR_RETURN(const Json json, parse(text));
  ExportManifest manifest;
  KILN_RETURN_IF_ERROR(read_common(json, manifest));
  KILN_ASSIGN_OR_RETURN(manifest.program_version, field<uint32_t>(json, "program_version"));
  KILN_ASSIGN_OR_RETURN(manifest.generator, field<std::string>(json, "generator"));
  KILN_ASSIGN_OR_RETURN(manifest.weights.bytes, field<uint64_t>(json, "weights_bytes"));
  KILN_ASSIGN_OR_RETURN(const Json checksums, field<Json>(json, "weights_checksums"));
  for (const Json& each : checksums) {
    if (!each.is_number_unsigned()) return wrong("a checksum is no number");
    manifest.weights.checksums.push_back(each.get<uint64_t>());
  }
  for (size_t i = 0; i < manifest.forms.size(); ++i) {
    KILN_RETURN_IF_ERROR(read_list(json["forms"][i], "programs", manifest.forms[i].programs));
  }
  return manifest;
}

Expected<ExportRequest> request_from_json(std::string_view text) {
  KILN_ASSIGN_OR_RETURN(const Json json, parse(text));
  ExportRequest request;
  KILN_RETURN_IF_ERROR(read_common(json, request.manifest));
  KILN_ASSIGN_OR_RETURN(request.deadline_ms, field<uint32_t>(json, "deadline_ms"));
  KILN_ASSIGN_OR_RETURN(const Json targets, field<Json>(json, "targets"));
  for (const Json& each : targets) {
    if (!each.is_string()) return wrong("a target is no name");
    request.targets.push_back(each.get<std::string>());
  }
  for (const Json& form : json["forms"]) {
    ExportRequest::Graph& graph = request.graphs.emplace_back();
    KILN_ASSIGN_OR_RETURN(graph.text, field<std::string>(form, "graph"));
    KILN_ASSIGN_OR_RETURN(graph.symbol_values, integers_in(form, "symbol_values"));
  }
  return request;
}

}  // namespace kiln
