// The C ABI: handles around Client, Graph and Program. Exceptions (memory, libraries) end here as internal
// errors.

#include "client/include/kiln.h"

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>

#include "base/build_id.h"
#include "base/config/config.h"
#include "base/split.h"
#include "client/client.h"
#include "client/export.h"
#include "client/framework_call.h"
#include "client/handles.h"
#include "client/sized_graph.h"
#include "frontend/autodiff/gradient.h"
#include "frontend/infer/builder.h"
#include "frontend/text/text.h"

struct kiln_client {
  std::unique_ptr<kiln::Client> client;
};
struct kiln_graph {
  kiln::Graph graph;
};
struct kiln_sized_graph {
  std::unique_ptr<kiln::SizedGraph> graph;
};
struct kiln_program {
  explicit kiln_program(kiln::Client::Compiled found) : compiled(std::move(found)), call(compiled.program) {}

  kiln::Client::Compiled compiled;
  mutable kiln::FrameworkCall call;
};

using kiln::guarded;

namespace {

std::optional<std::string> optional_string(const char* text) {
  return text ? std::optional<std::string>(text) : std::nullopt;
}

std::span<const uint8_t> bytes_of(const void* data, size_t size) { return {static_cast<const uint8_t*>(data), size}; }

/// Adds the gradients of output `loss` with respect to `inputs` to the graph's outputs.
kiln::Status differentiate(kiln::Graph& graph, size_t loss, std::span<const size_t> inputs) {
  if (loss >= graph.outputs().size()) {
    return kiln::invalid_argument("output {} is to be differentiated, the graph has {}", loss, graph.outputs().size());
  }
  std::vector<kiln::ValueId> values;
  for (size_t input : inputs) {
    if (input >= graph.inputs().size()) {
      return kiln::invalid_argument("gradient with respect to input {}, the graph has {}", input,
                                    graph.inputs().size());
    }
    values.push_back(graph.inputs()[input]);
  }
  std::vector<kiln::ValueId> outputs = graph.outputs();
  kiln::GraphBuilder builder(graph);
  KILN_ASSIGN_OR_RETURN(auto gradients, kiln::gradients(builder, outputs[loss], values));
  outputs.insert(outputs.end(), gradients.begin(), gradients.end());
  graph.set_outputs(std::move(outputs));
  return {};
}

kiln::Client::CompileOptions how_to(const kiln_compile_options* options) {
  if (options == nullptr) return {};
  kiln_compile_options given{};  // what the caller's header does not know yet stays zero
  std::memcpy(&given, options, std::min(options->struct_size, sizeof given));
  std::function<void()> planned;
  if (given.planned != nullptr) planned = [given] { given.planned(given.planned_argument); };
  return {.symbol_values = {given.symbol_values, given.symbol_count},
          .deadline_ms = given.deadline_ms,
          .tune = given.tune != 0,
          .mapped_only = given.mapped_only != 0,
          .label = given.label == nullptr ? "" : given.label,
          .threads = given.threads,
          .planned = planned};
}

nlohmann::ordered_json describe(const kiln::TensorLayout& layout) {
  return {{"dtype", kiln::to_string(layout.dtype)}, {"shape", layout.dims}, {"strides", layout.strides}};
}

nlohmann::ordered_json describe_profile(const kiln::Program& program) {
  auto launches = nlohmann::ordered_json::array();
  for (size_t i = 0; i < program.launch_names().size(); ++i) {
    const auto& times = program.profile()->of(i);
    launches.push_back({{"name", program.launch_names()[i]},
                        {"runs", program.profile()->runs()},
                        {"wall_ms", static_cast<double>(times.wall_ns.load()) * 1e-6},
                        {"busy_ms", static_cast<double>(times.busy_ns.load()) * 1e-6},
                        {"shortest_ms", static_cast<double>(times.shortest_ns.load()) * 1e-6},
                        {"bytes", program.launch_bytes(i)}});
  }
  return launches;
}

kiln::Status give_capture(const std::optional<std::span<const uint8_t>>& found, kiln_bytes** out) {
  if (!found) return kiln::error(kiln::StatusCode::not_found, "no such capture");
  *out = new kiln_bytes{std::string(reinterpret_cast<const char*>(found->data()), found->size())};
  return {};
}

}  // namespace

extern "C" {

static_assert(KILN_DATA_LOSS == static_cast<int>(kiln::StatusCode::data_loss), "codes cross the ABI as they are");

const char* kiln_code_name(int32_t code) {
  const bool known = code >= KILN_OK && code <= KILN_DATA_LOSS;
  return kiln::to_string(known ? static_cast<kiln::StatusCode>(code) : kiln::StatusCode::unknown).data();
}
int32_t kiln_error_code(const kiln_error* error) { return error ? static_cast<int32_t>(error->status.code()) : 0; }
const char* kiln_error_message(const kiln_error* error) { return error ? error->status.message().c_str() : ""; }
const char* kiln_error_op(const kiln_error* error) { return error ? error->status.op().c_str() : ""; }
void kiln_error_destroy(kiln_error* error) { delete error; }

const char* kiln_bytes_data(const kiln_bytes* bytes) { return bytes->data.data(); }
size_t kiln_bytes_size(const kiln_bytes* bytes) { return bytes->data.size(); }
void kiln_bytes_destroy(kiln_bytes* bytes) { delete bytes; }

const char* kiln_version(void) {
  static const std::string version = fmt::format("{} (generator {})", KILN_VERSION, kiln::generator_build_id());
  return version.c_str();
}

kiln_error* kiln_client_create(const kiln_client_options* options, kiln_client** out) {
  return guarded([&]() -> kiln::Status {
    kiln_client_options given{};  // what the caller's header does not know yet stays zero
    if (options) std::memcpy(&given, options, std::min(options->struct_size, sizeof given));
    KILN_ASSIGN_OR_RETURN(
        auto client,
        kiln::Client::create(optional_string(given.cache_directory), optional_string(given.config_file),
                             given.device ? given.device : "", given.python ? given.python : "", given.is_interrupted));
    *out = new kiln_client{std::move(client)};
    return {};
  });
}

void kiln_client_destroy(kiln_client* client) { delete client; }

kiln_error* kiln_client_stats(kiln_client* client, kiln_bytes** out_json) {
  return guarded([&]() -> kiln::Status {
    *out_json = new kiln_bytes{client->client->stats_json()};
    return {};
  });
}

kiln_error* kiln_client_explain(kiln_client* client, kiln_bytes** out_json) {
  return guarded([&]() -> kiln::Status {
    *out_json = new kiln_bytes{client->client->explain_json()};
    return {};
  });
}

kiln_error* kiln_client_setting(kiln_client* client, const char* key, kiln_bytes** out_text) {
  return guarded([&]() -> kiln::Status {
    const auto keys = kiln::config_keys();
    const auto row = std::ranges::find(keys, std::string_view(key), &kiln::ConfigKey::name);
    if (row == keys.end()) return kiln::error(kiln::StatusCode::not_found, "no configuration key is called '{}'", key);
    *out_text = new kiln_bytes{kiln::value_text(client->client->config(), *row)};
    return {};
  });
}

kiln_error* kiln_memory_allocate(kiln_client* client, size_t size, void** out) {
  return guarded([&]() -> kiln::Status {
    KILN_ASSIGN_OR_RETURN(*out, client->client->device().device->allocate(size));
    return {};
  });
}

void kiln_memory_release(kiln_client* client, void* memory) {
  if (memory) client->client->device().device->release(memory);
}

kiln_error* kiln_memory_upload(kiln_client* client, void* to, const void* from_host, size_t size) {
  return guarded([&]() -> kiln::Status {
    kiln::DeviceStream* stream = client->client->stream();
    if (stream) return stream->upload(to, from_host, size);
    std::memcpy(to, from_host, size);
    return {};
  });
}

kiln_error* kiln_memory_download(kiln_client* client, void* to_host, const void* from, size_t size) {
  return guarded([&]() -> kiln::Status {
    kiln::DeviceStream* stream = client->client->stream();
    if (stream) return stream->download(to_host, from, size);
    std::memcpy(to_host, from, size);
    return {};
  });
}

kiln_error* kiln_graph_parse(const char* text, size_t size, kiln_graph** out) {
  return guarded([&]() -> kiln::Status {
    KILN_ASSIGN_OR_RETURN(auto graph, kiln::parse_text(std::string_view(text, size)));
    *out = new kiln_graph{std::move(graph)};
    return {};
  });
}

kiln_error* kiln_graph_print(const kiln_graph* graph, kiln_bytes** out_text) {
  return guarded([&]() -> kiln::Status {
    *out_text = new kiln_bytes{kiln::print_text(graph->graph)};
    return {};
  });
}

kiln_error* kiln_graph_differentiate(const kiln_graph* graph, size_t loss, const size_t* inputs, size_t input_count,
                                     kiln_graph** out) {
  return guarded([&]() -> kiln::Status {
    auto result = std::make_unique<kiln_graph>(*graph);
    KILN_RETURN_IF_ERROR(differentiate(result->graph, loss, std::span(inputs, input_count)));
    *out = result.release();
    return {};
  });
}

void kiln_graph_destroy(kiln_graph* graph) { delete graph; }

kiln_error* kiln_program_create(kiln_client* client, const kiln_graph* graph, const kiln_compile_options* options,
                                kiln_program** out) {
  return guarded([&]() -> kiln::Status {
    KILN_ASSIGN_OR_RETURN(auto compiled, client->client->compile(graph->graph, how_to(options)));
    *out = new kiln_program(std::move(compiled));
    return {};
  });
}

kiln_error* kiln_client_build(kiln_client* client, const kiln_graph* graph, const char* targets,
                              const kiln_compile_options* options) {
  return guarded([&]() -> kiln::Status {
    const auto built = client->client->build_for(graph->graph, kiln::split(targets, ','), how_to(options));
    return built.status();
  });
}

kiln_error* kiln_sized_graph_create(kiln_client* client, const kiln_graph* graph, kiln_sized_graph** out) {
  return guarded([&]() -> kiln::Status {
    KILN_ASSIGN_OR_RETURN(auto sized, kiln::SizedGraph::create(*client->client, graph->graph));
    *out = new kiln_sized_graph{std::move(sized)};
    return {};
  });
}

kiln_error* kiln_sized_graph_program(kiln_sized_graph* graph, const int64_t* sizes, size_t count, kiln_program** out) {
  return guarded([&]() -> kiln::Status {
    KILN_ASSIGN_OR_RETURN(const auto compiled, graph->graph->program({sizes, count}));
    *out = compiled ? new kiln_program(*compiled) : nullptr;
    return {};
  });
}

size_t kiln_sized_graph_known(kiln_sized_graph* graph) { return graph->graph->known(); }

kiln_error* kiln_sized_graph_build(kiln_sized_graph* graph, const kiln_compile_options* options) {
  return guarded([&]() -> kiln::Status { return graph->graph->build(how_to(options)); });
}

void kiln_sized_graph_destroy(kiln_sized_graph* graph) { delete graph; }

void kiln_program_destroy(kiln_program* program) { delete program; }

size_t kiln_program_input_count(const kiln_program* program) { return program->compiled.program->inputs().size(); }
size_t kiln_program_output_count(const kiln_program* program) { return program->compiled.program->outputs().size(); }

int kiln_program_output_alias(const kiln_program* program, size_t index, size_t* input) {
  const uint32_t alias = program->compiled.program->output_alias(index);
  if (alias == kiln::k_none) return 0;
  *input = alias;
  return 1;
}

int kiln_program_may_overwrite(const kiln_program* program, size_t output, size_t input) {
  return program->compiled.program->may_overwrite(static_cast<uint32_t>(output), static_cast<uint32_t>(input)) ? 1 : 0;
}

kiln_error* kiln_program_run(const kiln_program* program, const void* const* inputs, void* const* outputs,
                             uint32_t num_threads) {
  return guarded([&] {
    const kiln::Program& loaded = *program->compiled.program;
    return loaded.run(std::span(inputs, loaded.inputs().size()), std::span(outputs, loaded.outputs().size()),
                      num_threads);
  });
}

kiln_error* kiln_program_launch(kiln_client* client, const kiln_program* program, void* queue,
                                const void* const* inputs, void* const* outputs, void* scratch) {
  return guarded([&]() -> kiln::Status {
    const kiln::Program& loaded = *program->compiled.program;
    KILN_ASSIGN_OR_RETURN(const auto stream, client->client->stream_over(queue));
    return loaded.launch(*stream, std::span(inputs, loaded.inputs().size()),
                         std::span(outputs, loaded.outputs().size()), scratch);
  });
}

kiln_error* kiln_program_call(kiln_client* client, const kiln_program* program, void* queue, const void* const* inputs,
                              void* const* outputs, void* scratch) {
  return guarded([&] {
    const kiln::Program& loaded = *program->compiled.program;
    return program->call.run(*client->client, queue, std::span(inputs, loaded.inputs().size()),
                             std::span(outputs, loaded.outputs().size()), scratch);
  });
}

kiln_error* kiln_queue_finish(kiln_client* client, void* queue) {
  return guarded([&]() -> kiln::Status {
    KILN_ASSIGN_OR_RETURN(const auto stream, client->client->stream_over(queue));
    return stream->finish();
  });
}

size_t kiln_program_scratch_bytes(const kiln_program* program) {
  return program->compiled.program->launch_scratch_bytes();
}

int kiln_program_checks_indices(const kiln_program* program) {
  return program->compiled.program->checks_indices() ? 1 : 0;
}

kiln_error* kiln_program_describe(const kiln_program* program, kiln_bytes** out_json) {
  return guarded([&]() -> kiln::Status {
    const kiln::Program& loaded = *program->compiled.program;
    nlohmann::ordered_json json{{"found", program->compiled.how},    {"target", loaded.target()},
                                {"generation", loaded.generation()}, {"nodes", loaded.node_count()},
                                {"regions", loaded.plans().size()},  {"kernels", loaded.kernel_count()},
                                {"launches", loaded.launch_names()}, {"scratch_bytes", loaded.scratch_bytes()}};
    json["key"] = program->compiled.key.to_hex();
    json["compilations"] = program->compiled.compilations;
    if (const auto counts = loaded.recordings(); counts.made > 0 || !counts.refusal.empty()) {
      json["recordings"] = {{"made", counts.made}, {"replayed", counts.replayed}, {"refusal", counts.refusal}};
    }
    json["plans"] = nlohmann::ordered_json::array();
    for (const auto& plan : loaded.plans()) json["plans"].push_back(plan.to_hex());
    json["inputs"] = json["outputs"] = nlohmann::ordered_json::array();
    for (const auto& layout : loaded.inputs()) json["inputs"].push_back(describe(layout));
    for (const auto& layout : loaded.outputs()) json["outputs"].push_back(describe(layout));
    if (loaded.profile()) json["profile"] = describe_profile(loaded);
    *out_json = new kiln_bytes{json.dump()};
    return {};
  });
}

kiln_error* kiln_capture_get(kiln_client* client, const void* key, size_t key_size, kiln_bytes** out) {
  return guarded([&] { return give_capture(client->client->find_capture(bytes_of(key, key_size)), out); });
}

kiln_error* kiln_capture_fetch(kiln_client* client, const void* key, size_t key_size, kiln_bytes** out) {
  return guarded([&] { return give_capture(client->client->fetch_capture(bytes_of(key, key_size)), out); });
}

kiln_error* kiln_capture_put(kiln_client* client, const void* key, size_t key_size, const void* data, size_t size,
                             const char* name) {
  return guarded([&] {
    return client->client->put_capture(bytes_of(key, key_size), bytes_of(data, size), name == nullptr ? "" : name);
  });
}

kiln_error* kiln_export(kiln_client* client, const char* path, const char* request, size_t request_size) {
  return guarded([&] { return kiln::write_export(*client->client, path, {request, request_size}); });
}

}  // extern "C"
