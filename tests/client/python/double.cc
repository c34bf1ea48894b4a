// A libkiln whose programs do what their text says, so that the extension can be tested without any compiler.
// Text is "INPUTS OUTPUTS BEHAVIOUR [BYTES]"; behaviours: noop, copy (input 0 to output 0, BYTES long), fill
// (0x11 into output 0, BYTES long), out_of_range, unavailable, alias (output 0 is input 0).
// A client of a device has the host's memory and no streams.

#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "client/include/kiln.h"

struct kiln_error {
  int32_t code;
  std::string message, op;
};
struct kiln_bytes {
  std::string data;
};
struct kiln_client {
  std::string capture;
  kiln_error* reported = nullptr;
  int finishes = 0;
};
struct kiln_graph {
  size_t inputs = 0, outputs = 0, bytes = 0;
  std::string behaviour;
};
struct kiln_program {
  kiln_graph graph;
  mutable int runs = 0, launches = 0;
};

static constexpr size_t k_scratch_bytes = 4096;

extern "C" {

int32_t kiln_error_code(const kiln_error* error) { return error->code; }
const char* kiln_code_name(int32_t code) {
  return code == KILN_UNAVAILABLE ? "unavailable" : code == KILN_UNIMPLEMENTED ? "unimplemented" : "unknown";
}
const char* kiln_error_message(const kiln_error* error) { return error->message.c_str(); }
const char* kiln_error_op(const kiln_error* error) { return error->op.c_str(); }
void kiln_error_destroy(kiln_error* error) { delete error; }
const char* kiln_bytes_data(const kiln_bytes* bytes) { return bytes->data.data(); }
size_t kiln_bytes_size(const kiln_bytes* bytes) { return bytes->data.size(); }
void kiln_bytes_destroy(kiln_bytes* bytes) { delete bytes; }
const char* kiln_version(void) { return "double"; }

kiln_error* kiln_client_create(const kiln_client_options* options, kiln_client** out) {
  if (options->config_file != nullptr && strcmp(options->config_file, "bad") == 0) {
    return new kiln_error{KILN_INVALID_ARGUMENT, "config bad: no such file", ""};
  }
  *out = new kiln_client;
  return nullptr;
}
void kiln_client_destroy(kiln_client* client) { delete client; }
kiln_error* kiln_client_stats(kiln_client* client, kiln_bytes** out) {
  *out = new kiln_bytes{"{\"compilations\": 7, \"finishes\": " + std::to_string(client->finishes) + "}"};
  return nullptr;
}
kiln_error* kiln_client_explain(kiln_client*, kiln_bytes** out) {
  *out = new kiln_bytes{"[]"};
  return nullptr;
}

kiln_error* kiln_client_setting(kiln_client*, const char* key, kiln_bytes** out) {
  std::string name = "KILN_";
  for (const char* c = key; *c != '\0'; ++c) name += *c == '.' ? '_' : static_cast<char>(std::toupper(*c));
  const char* value = std::getenv(name.c_str());
  *out = new kiln_bytes{value ? value : name.starts_with("KILN_CLIENT_") ? "first" : "torch"};
  return nullptr;
}

kiln_error* kiln_graph_parse(const char* text, size_t size, kiln_graph** out) {
  char behaviour[32] = {};
  auto* graph = new kiln_graph;
  const std::string copy(text, size);
  if (sscanf(copy.c_str(), "%zu %zu %31s %zu", &graph->inputs, &graph->outputs, behaviour, &graph->bytes) < 3) {
    delete graph;
    return new kiln_error{KILN_INVALID_ARGUMENT, "1:1: expected a graph, got '" + copy + "'", ""};
  }
  graph->behaviour = behaviour;
  *out = graph;
  return nullptr;
}
kiln_error* kiln_graph_print(const kiln_graph* graph, kiln_bytes** out) {
  *out = new kiln_bytes{graph->behaviour};
  return nullptr;
}
void kiln_graph_destroy(kiln_graph* graph) { delete graph; }

kiln_error* kiln_program_create(kiln_client*, const kiln_graph* graph, const kiln_compile_options*,
                                kiln_program** out) {
  if (graph->behaviour == "unimplemented")
    return new kiln_error{KILN_UNIMPLEMENTED, "loops_f64_3: no kernel", "cumsum"};
  if (graph->behaviour == "unavailable") return new kiln_error{KILN_UNAVAILABLE, "no daemon", ""};
  *out = new kiln_program{*graph};
  return nullptr;
}
void kiln_program_destroy(kiln_program* program) { delete program; }
kiln_error* kiln_client_build(kiln_client*, const kiln_graph*, const char* targets, const kiln_compile_options*) {
  if (strcmp(targets, "nowhere") == 0) return new kiln_error{KILN_INVALID_ARGUMENT, "no target is called nowhere", ""};
  return nullptr;
}
kiln_error* kiln_sized_graph_create(kiln_client*, const kiln_graph*, kiln_sized_graph**) {
  return new kiln_error{KILN_UNIMPLEMENTED, "no program serves many sizes", ""};
}
kiln_error* kiln_sized_graph_program(kiln_sized_graph*, const int64_t*, size_t, kiln_program**) { return nullptr; }
size_t kiln_sized_graph_known(kiln_sized_graph*) { return 0; }
kiln_error* kiln_sized_graph_build(kiln_sized_graph*, const kiln_compile_options*) { return nullptr; }
void kiln_sized_graph_destroy(kiln_sized_graph*) {}
size_t kiln_program_input_count(const kiln_program* program) { return program->graph.inputs; }
size_t kiln_program_output_count(const kiln_program* program) { return program->graph.outputs; }
int kiln_program_output_alias(const kiln_program* program, size_t index, size_t* input) {
  if (program->graph.behaviour != "alias" || index != 0) return 0;
  *input = 0;
  return 1;
}
int kiln_program_may_overwrite(const kiln_program* program, size_t, size_t) {
  return program->graph.behaviour == "copy" ? 1 : 0;
}
static kiln_error* perform(const kiln_graph& graph, const void* const* inputs, void* const* outputs) {
  if (graph.behaviour == "copy") memmove(outputs[0], inputs[0], graph.bytes);
  if (graph.behaviour == "fill") memset(outputs[0], 0x11, graph.bytes);
  if (graph.behaviour == "out_of_range")
    return new kiln_error{KILN_OUT_OF_RANGE, "launch 3: index 9 is outside [0, 4)", ""};
  return nullptr;
}
kiln_error* kiln_program_run(const kiln_program* program, const void* const* inputs, void* const* outputs, uint32_t) {
  ++program->runs;
  return perform(program->graph, inputs, outputs);
}
// What is wrong comes out of the queue, as a device's kernels say it.
kiln_error* kiln_program_launch(kiln_client* client, const kiln_program* program, void* queue,
                                const void* const* inputs, void* const* outputs, void* scratch) {
  if (queue != nullptr) return new kiln_error{KILN_INTERNAL, "the host has no streams", ""};
  ++program->launches;
  memset(scratch, 0xff, k_scratch_bytes);
  client->reported = perform(program->graph, inputs, outputs);
  return nullptr;
}
kiln_error* kiln_program_call(kiln_client* client, const kiln_program* program, void* queue, const void* const* inputs,
                              void* const* outputs, void* scratch) {
  if (kiln_error* error = kiln_program_launch(client, program, queue, inputs, outputs, scratch)) return error;
  return kiln_program_checks_indices(program) == 1 ? kiln_queue_finish(client, queue) : nullptr;
}
kiln_error* kiln_queue_finish(kiln_client* client, void*) {
  ++client->finishes;
  kiln_error* const reported = client->reported;
  client->reported = nullptr;
  return reported;
}
size_t kiln_program_scratch_bytes(const kiln_program*) { return k_scratch_bytes; }
int kiln_program_checks_indices(const kiln_program* program) {
  return program->graph.behaviour == "out_of_range" ? 1 : 0;
}
kiln_error* kiln_program_describe(const kiln_program* program, kiln_bytes** out) {
  *out = new kiln_bytes{"{\"runs\": " + std::to_string(program->runs) +
                        ", \"launches\": " + std::to_string(program->launches) + "}"};
  return nullptr;
}

kiln_error* kiln_capture_get(kiln_client* client, const void*, size_t, kiln_bytes** out) {
  if (client->capture.empty()) return new kiln_error{KILN_NOT_FOUND, "no capture", ""};
  *out = new kiln_bytes{client->capture};
  return nullptr;
}
kiln_error* kiln_capture_fetch(kiln_client* client, const void* key, size_t size, kiln_bytes** out) {
  return kiln_capture_get(client, key, size, out);
}
kiln_error* kiln_capture_put(kiln_client* client, const void*, size_t, const void* data, size_t size, const char*) {
  client->capture.assign(static_cast<const char*>(data), size);
  return nullptr;
}

// It exports nothing, and so there is nothing to load.
kiln_error* kiln_export(kiln_client*, const char*, const char*, size_t) {
  return new kiln_error{KILN_UNIMPLEMENTED, "the double exports nothing", ""};
}
kiln_error* kiln_load(const char*, kiln_exported**) {
  return new kiln_error{KILN_UNIMPLEMENTED, "the double loads nothing", ""};
}
void kiln_exported_destroy(kiln_exported*) {}
const char* kiln_exported_target(const kiln_exported*) { return ""; }
size_t kiln_exported_form_count(const kiln_exported*) { return 0; }
size_t kiln_exported_input_count(const kiln_exported*) { return 0; }
size_t kiln_exported_output_count(const kiln_exported*) { return 0; }
kiln_error* kiln_exported_input(const kiln_exported*, size_t, size_t, kiln_tensor_type*) { return nullptr; }
kiln_error* kiln_exported_output(const kiln_exported*, size_t, size_t, kiln_tensor_type*) { return nullptr; }
kiln_error* kiln_exported_choose(const kiln_exported*, const kiln_tensor_type*, size_t, size_t*) { return nullptr; }
kiln_error* kiln_exported_run(const kiln_exported*, size_t, const void* const*, void* const*, uint32_t) {
  return nullptr;
}
}
