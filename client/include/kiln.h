#ifndef KILN_H
#define KILN_H

/* libkiln: graphs in, kernels out. C ABI, stable: handles are opaque, structs carry their size, enums append.
 *
 * A client finds compiled programs in the mapped cache without any daemon; what is missing it asks of kilnd, which it
 * starts when absent. Nothing here aborts, throws, or waits longer than its deadline: every failure is a kiln_error,
 * and the caller falls back.
 *
 * Threading: any function from any thread at once, except that destroying a handle may not overlap its other calls.
 * Fork: a child may use a client made before the fork; it connects anew.
 * Ownership: kiln_*_create and functions with an `out` handle give a handle that the caller destroys. Strings inside
 *   a handle live as long as the handle. */

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define KILN_API __attribute__((visibility("default")))

typedef struct kiln_client kiln_client;
typedef struct kiln_graph kiln_graph;
typedef struct kiln_program kiln_program;
typedef struct kiln_error kiln_error;
typedef struct kiln_bytes kiln_bytes; /* an owned byte string */

/* What kind of failure an error is: Abseil's canonical codes. */
enum kiln_code {
  KILN_OK = 0,
  KILN_CANCELLED = 1,
  KILN_UNKNOWN = 2,
  KILN_INVALID_ARGUMENT = 3,
  KILN_DEADLINE_EXCEEDED = 4,
  KILN_NOT_FOUND = 5,
  KILN_ALREADY_EXISTS = 6,
  KILN_PERMISSION_DENIED = 7,
  KILN_RESOURCE_EXHAUSTED = 8,
  KILN_FAILED_PRECONDITION = 9,
  KILN_ABORTED = 10,
  KILN_OUT_OF_RANGE = 11,
  KILN_UNIMPLEMENTED = 12,
  KILN_INTERNAL = 13,
  KILN_UNAVAILABLE = 14,
  KILN_DATA_LOSS = 15
};

/* kiln_error: NULL means success. The code is one of kiln_code. */
KILN_API int32_t kiln_error_code(const kiln_error* error);
/* The code by name: "invalid_argument" and so on; "unknown" for a number that is no kiln_code. */
KILN_API const char* kiln_code_name(int32_t code);
KILN_API const char* kiln_error_message(const kiln_error* error);
/* The op of the graph that no backend implements, or whose kernel could not be had, by its name in the text form: a graph
 * without it may be. Empty when the failure is not one op's. */
KILN_API const char* kiln_error_op(const kiln_error* error);
KILN_API void kiln_error_destroy(kiln_error* error);

KILN_API const char* kiln_bytes_data(const kiln_bytes* bytes);
KILN_API size_t kiln_bytes_size(const kiln_bytes* bytes);
KILN_API void kiln_bytes_destroy(kiln_bytes* bytes);

KILN_API const char* kiln_version(void);

/* ---- client */

typedef struct kiln_client_options {
  size_t struct_size;
  const char* cache_directory; /* NULL: configuration */
  const char* config_file;     /* NULL: the usual places */
  const char* device;          /* whose programs: a backend's name, or name:index; NULL: the host */
  const char* python; /* the program of the running Python, or NULL: used where python.path is not configured */
  /* Asked about ten times a second, on the waiting thread, while a call waits for the daemon; not 0 ends the wait with
   * cancelled (1), and the work goes on. For hosts whose signals wait for them to look (Python's Ctrl-C). NULL: never. */
  int (*is_interrupted)(void);
} kiln_client_options;

KILN_API kiln_error* kiln_client_create(const kiln_client_options* options, kiln_client** out);
KILN_API void kiln_client_destroy(kiln_client* client);

/* JSON object: counters of this process (docs/client.md lists them). */
KILN_API kiln_error* kiln_client_stats(kiln_client* client, kiln_bytes** out_json);
/* JSON array: why each miss of this process was one. */
KILN_API kiln_error* kiln_client_explain(kiln_client* client, kiln_bytes** out_json);

/* A value of the client's configuration by its key ("client.check"), as `kiln config show` prints it. Errors: not_found. */
KILN_API kiln_error* kiln_client_setting(kiln_client* client, const char* key, kiln_bytes** out_text);

/* ---- memory of the client's device; of the host it is plain memory
 *
 * Addresses are the device's: the caller does not follow them. At least 256-byte aligned. upload and download return
 * when the bytes are there. Memory is released before its client, and by nobody who may still have work on it. */

KILN_API kiln_error* kiln_memory_allocate(kiln_client* client, size_t size, void** out);
KILN_API void kiln_memory_release(kiln_client* client, void* memory);
KILN_API kiln_error* kiln_memory_upload(kiln_client* client, void* to, const void* from_host, size_t size);
KILN_API kiln_error* kiln_memory_download(kiln_client* client, void* to_host, const void* from, size_t size);

/* ---- graph */

/* Reads Kiln's text form (docs/text_form.md). `size` bytes, need not end with a zero. */
KILN_API kiln_error* kiln_graph_parse(const char* text, size_t size, kiln_graph** out);
KILN_API kiln_error* kiln_graph_print(const kiln_graph* graph, kiln_bytes** out_text);
/* A graph with the outputs of `graph` and, after them, the gradients of its scalar output number `loss` with respect
 * to the inputs listed, in their order. Errors: unimplemented, naming an op without gradient. */
KILN_API kiln_error* kiln_graph_differentiate(const kiln_graph* graph, size_t loss, const size_t* inputs,
                                              size_t input_count, kiln_graph** out);
KILN_API void kiln_graph_destroy(kiln_graph* graph);

/* ---- program */

typedef struct kiln_compile_options {
  size_t struct_size;
  uint32_t deadline_ms;         /* 0: configuration. Ends the waiting, not the work */
  const int64_t* symbol_values; /* extents bound to the graph's symbols, in order; NULL when it has none */
  size_t symbol_count;
  int tune; /* not 0: waits until candidates for its matrix products and attention have raced on this machine */
  const char*
      label;        /* what people know it by in lists and logs, such as a model's class; NULL: only what it computes */
  uint32_t threads; /* that it will run on, where candidates race; 0: as many as there are cores */
  int mapped_only;  /* not 0: no daemon is asked; what is not mapped, or has yet to race, is not_found, and no miss */
  /* NULL, or called on the calling thread once a daemon has planned all that it compiles: no op is refused any more. Not
   * called for devices, where candidates race, nor for what is mapped. */
  void (*planned)(void* argument);
  void* planned_argument;
} kiln_compile_options;

/* Mapped cache first, then the daemon. Errors: unavailable (no daemon, or KILN_NO_DAEMON), deadline_exceeded,
 * unimplemented (names the op), what the compiler reported. */
KILN_API kiln_error* kiln_program_create(kiln_client* client, const kiln_graph* graph,
                                         const kiln_compile_options* options, kiln_program** out);
/* A program of a device may be destroyed only when what was launched of it is done (kiln_queue_finish). */
KILN_API void kiln_program_destroy(kiln_program* program);

/* Has the graph built into the cache for targets by name, with commas between, whether or not this host has such
 * devices: code for those it lacks is checked where a host that has one first needs it. Errors: as above. */
KILN_API kiln_error* kiln_client_build(kiln_client* client, const kiln_graph* graph, const char* targets,
                                       const kiln_compile_options* options);

/* A graph of symbols, of which a process wants programs for ever other sizes. Programs for many sizes, which the daemon builds,
 * give them without it. `client` must outlive it. Threading: any thread at once. */
typedef struct kiln_sized_graph kiln_sized_graph;
KILN_API kiln_error* kiln_sized_graph_create(kiln_client* client, const kiln_graph* graph, kiln_sized_graph** out);
/* The program for these sizes, one for each symbol in order; *out is NULL where none in the cache serves them. Asks nobody.
 * Errors: failed_precondition (a guard of the graph does not hold), invalid_argument (another number of sizes). */
KILN_API kiln_error* kiln_sized_graph_program(kiln_sized_graph* graph, const int64_t* sizes, size_t count,
                                              kiln_program** out);
/* How many programs for many sizes have served this graph so far. */
KILN_API size_t kiln_sized_graph_known(kiln_sized_graph* graph);
/* Waits until the daemon has built the program that serves options->symbol_values, and sizes around them. Errors: unimplemented
 * (sizes make other programs there), unavailable, deadline_exceeded, what the compiler reported. */
KILN_API kiln_error* kiln_sized_graph_build(kiln_sized_graph* graph, const kiln_compile_options* options);
KILN_API void kiln_sized_graph_destroy(kiln_sized_graph* graph);

KILN_API size_t kiln_program_input_count(const kiln_program* program);
KILN_API size_t kiln_program_output_count(const kiln_program* program);
/* Outputs that are views of an input are not written: output `index` is input `*input` as it is. 1 if so, else 0. */
KILN_API int kiln_program_output_alias(const kiln_program* program, size_t index, size_t* input);

/* 1 where output `output` may be given the memory of input `input`, in whose layout it is, each of several outputs that of
 * another input; else 0. Never on a device, nor where indices come from data. */
KILN_API int kiln_program_may_overwrite(const kiln_program* program, size_t output, size_t input);

/* Runs and waits. On the host: on the calling thread and, unless num_threads is 1, on its OpenMP pool. inputs and
 * outputs are base pointers, in the memory of the client's device, of tensors laid out as the graph says. Outputs
 * overlap neither one another nor inputs, but for what kiln_program_may_overwrite allows.
 * Errors: out_of_range when an index that came from data is outside its tensor (outputs are then undefined). */
KILN_API kiln_error* kiln_program_run(const kiln_program* program, const void* const* inputs, void* const* outputs,
                                      uint32_t num_threads);

/* Puts the program on a queue of the caller's (a stream, as the device's own API names it; NULL is that API's default)
 * and returns. A queue lives as long as the client. `scratch` is memory of the device, kiln_program_scratch_bytes of it, 256-byte aligned, in use until the
 * work is done; NULL: a block that the client keeps for the queue.
 * What kernels find wrong with their data comes out of kiln_queue_finish, which waits for the queue; no kernel finds
 * anything unless kiln_program_checks_indices.
 * Errors: failed_precondition for a program of the host. */
KILN_API kiln_error* kiln_program_launch(kiln_client* client, const kiln_program* program, void* queue,
                                         const void* const* inputs, void* const* outputs, void* scratch);
KILN_API kiln_error* kiln_queue_finish(kiln_client* client, void* queue);
/* The same as a framework calls an op. Over memory that it was called with before the launches are put there as one, recorded. An
 * index outside its tensor is out_of_range at a program's first call, which waits for the queue; later the device's own
 * assertion, for which nobody waits (all calls wait where the device has none, or device.index_errors is report). While the
 * queue's owner records what is put there nothing waits, and what was recorded may run as long as the client lives.
 * Errors: failed_precondition for a program of the host, and where a program that is recorded checks indices on a device
 * without assertions. */
KILN_API kiln_error* kiln_program_call(kiln_client* client, const kiln_program* program, void* queue,
                                       const void* const* inputs, void* const* outputs, void* scratch);
KILN_API size_t kiln_program_scratch_bytes(const kiln_program* program);
/* 1 when some index comes from data, so that kiln_queue_finish may say out_of_range, else 0. */
KILN_API int kiln_program_checks_indices(const kiln_program* program);

/* Facts for people and tools: JSON with its key, plans, launches, kernels, generation, how it was found. */
KILN_API kiln_error* kiln_program_describe(const kiln_program* program, kiln_bytes** out_json);

/* ---- captures: a framework's own bytes, kept in the cache under a key it computes */

KILN_API kiln_error* kiln_capture_get(kiln_client* client, const void* key, size_t key_size, kiln_bytes** out);
/* As kiln_capture_get; a capture that is not on this machine the daemon looks for in the fleet's store, where there is one
 * (cache.remote), which takes remote.budget_ms at most besides the daemon's start. */
KILN_API kiln_error* kiln_capture_fetch(kiln_client* client, const void* key, size_t key_size, kiln_bytes** out);
/* name: what people know it by, in lists; NULL: nothing. */
KILN_API kiln_error* kiln_capture_put(kiln_client* client, const void* key, size_t key_size, const void* data,
                                      size_t size, const char* name);

/* ---- exports: a model as a file with its kernels, and its weights beside it (docs/export.md) */

typedef struct kiln_exported kiln_exported;

/* What is said of a tensor; all of it lives as long as the handle it came from. */
typedef struct kiln_tensor_type {
  const char* name;
  const char* dtype; /* "f32", "i64", ... */
  size_t rank;
  const int64_t* shape;
  const int64_t* strides; /* in elements */
} kiln_tensor_type;

/* Writes an export to `path`; `request` is JSON (docs/export.md), `request_size` bytes of it. Errors: invalid_argument,
 * failed_precondition (a target that this host cannot run), and those of kiln_program_create. */
KILN_API kiln_error* kiln_export(kiln_client* client, const char* path, const char* request, size_t request_size);

/* Loads one: no client, daemon, cache or configuration is needed. All of it is loaded, or nothing.
 * Errors: not_found; permission_denied (a file that others may write); invalid_argument (it names files elsewhere);
 * data_loss (damaged, or cut); failed_precondition (of other targets than this host's, or of another build of Kiln). */
KILN_API kiln_error* kiln_load(const char* path, kiln_exported** out);
KILN_API void kiln_exported_destroy(kiln_exported* exported);

/* The target whose kernels run here. */
KILN_API const char* kiln_exported_target(const kiln_exported* exported);
/* An export has a form for each combination of input types that it was exported for: 0, 1, ... */
KILN_API size_t kiln_exported_form_count(const kiln_exported* exported);
KILN_API size_t kiln_exported_input_count(const kiln_exported* exported);
KILN_API size_t kiln_exported_output_count(const kiln_exported* exported);
KILN_API kiln_error* kiln_exported_input(const kiln_exported* exported, size_t form, size_t index,
                                         kiln_tensor_type* out);
KILN_API kiln_error* kiln_exported_output(const kiln_exported* exported, size_t form, size_t index,
                                          kiln_tensor_type* out);
/* The form for inputs of these dtypes and shapes; names and strides are not looked at. Errors: invalid_argument, which says
 * what is expected. */
KILN_API kiln_error* kiln_exported_choose(const kiln_exported* exported, const kiln_tensor_type* inputs,
                                          size_t input_count, size_t* out_form);
/* Runs a form and waits; pointers are those of the first elements of all inputs and outputs, in the form's shapes and
 * strides; outputs overlap nothing. From any thread at once, as kiln_program_run.
 * Errors: out_of_range when an index that came from data is outside its tensor (outputs are then undefined). */
KILN_API kiln_error* kiln_exported_run(const kiln_exported* exported, size_t form, const void* const* inputs,
                                       void* const* outputs, uint32_t num_threads);

#ifdef __cplusplus
}
#endif

#endif /* KILN_H */
