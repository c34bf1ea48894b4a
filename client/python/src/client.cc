#include "client/python/src/client.h"

#include <atomic>
#include <vector>

#include "client/include/kiln.h"
#include "client/python/src/error.h"
#include "client/python/src/program.h"
#include "client/python/src/sized_graph.h"

namespace kiln::python {

namespace {

struct ClientObject {
  PyObject_HEAD kiln_client* client;
};

kiln_client* client_of(PyObject* object) { return reinterpret_cast<ClientObject*>(object)->client; }

std::atomic<bool> g_is_leaving{false};

/// Runs what Python has pending for signals, from a call that waits without the GIL. What a handler raises (Ctrl-C's
/// KeyboardInterrupt) stays set, and is what the call raises. Where the process is about to end nobody waits.
int is_interrupted() {
  if (g_is_leaving.load()) return 1;
  const PyGILState_STATE state = PyGILState_Ensure();
  const int raised = PyErr_CheckSignals();
  PyGILState_Release(state);
  return raised != 0;
}

PyObject* create_client(PyTypeObject* type, PyObject* arguments, PyObject* keywords) {
  static const char* k_names[] = {"cache_directory", "config_file", "device", "python", nullptr};
  kiln_client_options options{.struct_size = sizeof(kiln_client_options)};
  if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "|zzzz", const_cast<char**>(k_names), &options.cache_directory,
                                   &options.config_file, &options.device, &options.python)) {
    return nullptr;
  }
  options.is_interrupted = is_interrupted;
  kiln_client* client = nullptr;
  kiln_error* error = nullptr;
  Py_BEGIN_ALLOW_THREADS;
  error = kiln_client_create(&options, &client);
  Py_END_ALLOW_THREADS;
  if (error != nullptr) {
    set_error(error);
    return nullptr;
  }
  PyObject* self = PyType_GenericAlloc(type, 0);
  if (self == nullptr) {
    kiln_client_destroy(client);
    return nullptr;
  }
  reinterpret_cast<ClientObject*>(self)->client = client;
  return self;
}

void destroy_client(PyObject* object) {
  if (client_of(object) != nullptr) kiln_client_destroy(client_of(object));
  free_object(object);
}

/// DLPack's device of a client of a device: (type, number).
bool read_memory(PyObject* object, PyObject* client, Placement& placement) {
  if (object == nullptr || object == Py_None) return true;
  placement.client = client_of(client);
  return PyArg_ParseTuple(object, "ii;memory must be DLPack's (device type, number)", &placement.device.device_type,
                          &placement.device.device_id) != 0;
}

/// use(graph) with the graph that the text says, without the GIL. Sets a Python error and returns false on failure.
template <typename Use>
bool with_graph(const char* text, Py_ssize_t size, Use use) {
  kiln_error* error = nullptr;
  Py_BEGIN_ALLOW_THREADS;
  kiln_graph* graph = nullptr;
  error = kiln_graph_parse(text, static_cast<size_t>(size), &graph);
  if (error == nullptr) error = use(graph);
  kiln_graph_destroy(graph);
  Py_END_ALLOW_THREADS;
  if (error != nullptr) set_error(error);
  return error == nullptr;
}

kiln_compile_options options_of(uint32_t deadline_ms, const std::vector<int64_t>& symbol_values, bool tune,
                                const char* label, uint32_t threads) {
  return {.struct_size = sizeof(kiln_compile_options),
          .deadline_ms = deadline_ms,
          .symbol_values = symbol_values.empty() ? nullptr : symbol_values.data(),
          .symbol_count = symbol_values.size(),
          .tune = tune ? 1 : 0,
          .label = label,
          .threads = threads};
}

/// Calls a Python function of no arguments, from where the GIL is not held.
void call_python(void* function) {
  const PyGILState_STATE state = PyGILState_Ensure();
  PyObject* result = PyObject_CallNoArgs(static_cast<PyObject*>(function));
  if (result == nullptr) PyErr_WriteUnraisable(static_cast<PyObject*>(function));
  Py_XDECREF(result);
  PyGILState_Release(state);
}

PyObject* compile(PyObject* self, PyObject* arguments, PyObject* keywords) {
  static const char* k_names[] = {"text", "inputs", "outputs", "deadline_ms", "symbol_values", "num_threads", "memory",
                                  "tune", "label",  "threads", "mapped_only", "planned",       nullptr};
  const char* text = nullptr;
  Py_ssize_t text_size = 0;
  PyObject* inputs = nullptr;
  PyObject* outputs = nullptr;
  PyObject* symbols = nullptr;
  PyObject* memory = nullptr;
  unsigned int deadline_ms = 0;
  unsigned int threads = 0;
  int tune = 0;
  const char* label = nullptr;
  int mapped_only = 0;
  PyObject* planned = Py_None;
  Placement placement;
  if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "s#OO|IOIOpzIpO", const_cast<char**>(k_names), &text,
                                   &text_size, &inputs, &outputs, &deadline_ms, &symbols, &placement.num_threads,
                                   &memory, &tune, &label, &threads, &mapped_only, &planned)) {
    return nullptr;
  }
  std::vector<int64_t> symbol_values;
  if (!read_symbols(symbols, symbol_values) || !read_memory(memory, self, placement)) return nullptr;
  if (placement.num_threads != 0) threads = placement.num_threads;
  kiln_compile_options options = options_of(deadline_ms, symbol_values, tune != 0, label, threads);
  options.mapped_only = mapped_only;
  if (planned != Py_None) {
    options.planned = call_python;
    options.planned_argument = planned;
  }
  kiln_program* program = nullptr;
  if (!with_graph(text, text_size, [&](const kiln_graph* graph) {
        return kiln_program_create(client_of(self), graph, &options, &program);
      })) {
    return nullptr;
  }
  return wrap_program(program, self, inputs, outputs, placement);
}

PyObject* build(PyObject* self, PyObject* arguments, PyObject* keywords) {
  static const char* k_names[] = {"text", "targets", "deadline_ms", "symbol_values", "label", nullptr};
  const char* text = nullptr;
  Py_ssize_t text_size = 0;
  const char* targets = nullptr;
  PyObject* symbols = nullptr;
  const char* label = nullptr;
  unsigned int deadline_ms = 0;
  if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "s#s|IOz", const_cast<char**>(k_names), &text, &text_size,
                                   &targets, &deadline_ms, &symbols, &label)) {
    return nullptr;
  }
  std::vector<int64_t> symbol_values;
  if (!read_symbols(symbols, symbol_values)) return nullptr;
  const kiln_compile_options options = options_of(deadline_ms, symbol_values, false, label, 0);
  if (!with_graph(text, text_size, [&](const kiln_graph* graph) {
        return kiln_client_build(client_of(self), graph, targets, &options);
      })) {
    return nullptr;
  }
  Py_RETURN_NONE;
}

PyObject* sized(PyObject* self, PyObject* arguments) {
  const char* text = nullptr;
  Py_ssize_t size = 0;
  if (!PyArg_ParseTuple(arguments, "s#", &text, &size)) return nullptr;
  kiln_sized_graph* graph = nullptr;
  const auto create = [&](const kiln_graph* parsed) {
    return kiln_sized_graph_create(client_of(self), parsed, &graph);
  };
  return with_graph(text, size, create) ? wrap_sized_graph(graph, self) : nullptr;
}

PyObject* export_to(PyObject* self, PyObject* arguments) {
  PyObject* path = nullptr;
  const char* request = nullptr;
  Py_ssize_t size = 0;
  if (!PyArg_ParseTuple(arguments, "O&s#", PyUnicode_FSConverter, &path, &request, &size)) return nullptr;
  const Handle owner = Handle::steal(path);
  kiln_error* error = nullptr;
  Py_BEGIN_ALLOW_THREADS;
  error = kiln_export(client_of(self), PyBytes_AsString(path), request, static_cast<size_t>(size));
  Py_END_ALLOW_THREADS;
  if (error != nullptr) {
    set_error(error);
    return nullptr;
  }
  Py_RETURN_NONE;
}

PyObject* stats(PyObject* self, PyObject*) {
  kiln_bytes* json = nullptr;
  if (kiln_error* error = kiln_client_stats(client_of(self), &json)) {
    set_error(error);
    return nullptr;
  }
  return take_text(json);
}

PyObject* explain(PyObject* self, PyObject*) {
  kiln_bytes* json = nullptr;
  if (kiln_error* error = kiln_client_explain(client_of(self), &json)) {
    set_error(error);
    return nullptr;
  }
  return take_text(json);
}

PyObject* setting(PyObject* self, PyObject* key) {
  const char* name = PyUnicode_AsUTF8AndSize(key, nullptr);
  if (name == nullptr) return nullptr;
  kiln_bytes* text = nullptr;
  if (kiln_error* error = kiln_client_setting(client_of(self), name, &text)) {
    set_error(error);
    return nullptr;
  }
  return take_text(text);
}

PyObject* capture_get(PyObject* self, PyObject* arguments) {
  Py_buffer key;
  int fetches = 0;
  if (!PyArg_ParseTuple(arguments, "y*|p", &key, &fetches)) return nullptr;
  kiln_bytes* data = nullptr;
  kiln_error* error = nullptr;
  Py_BEGIN_ALLOW_THREADS;
  error = (fetches != 0 ? kiln_capture_fetch : kiln_capture_get)(client_of(self), key.buf, static_cast<size_t>(key.len),
                                                                 &data);
  Py_END_ALLOW_THREADS;
  PyBuffer_Release(&key);
  if (error != nullptr && kiln_error_code(error) == KILN_NOT_FOUND) {
    kiln_error_destroy(error);
    Py_RETURN_NONE;
  }
  if (error != nullptr) {
    set_error(error);
    return nullptr;
  }
  if (data == nullptr) Py_RETURN_NONE;
  return take_bytes(data);
}

PyObject* capture_put(PyObject* self, PyObject* arguments) {
  Py_buffer key;
  Py_buffer data;
  const char* name = nullptr;
  if (!PyArg_ParseTuple(arguments, "y*y*|z", &key, &data, &name)) return nullptr;
  kiln_error* error = nullptr;
  Py_BEGIN_ALLOW_THREADS;
  error = kiln_capture_put(client_of(self), key.buf, static_cast<size_t>(key.len), data.buf,
                           static_cast<size_t>(data.len), name);
  Py_END_ALLOW_THREADS;
  PyBuffer_Release(&key);
  PyBuffer_Release(&data);
  if (error != nullptr) {
    set_error(error);
    return nullptr;
  }
  Py_RETURN_NONE;
}

// NOLINTBEGIN(bugprone-casting-through-void): Python keeps functions of all forms as one type
PyMethodDef k_methods[] = {
    {"compile", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(compile)), METH_VARARGS | METH_KEYWORDS,
     "compile(text, inputs, outputs, deadline_ms=0, symbol_values=(), num_threads=0, memory=None, tune=False, "
     "label=None, threads=0, mapped_only=False, planned=None) -> Program. num_threads: that it runs on, 0: what OpenMP "
     "says at each call. threads: that candidates race on, 0: all cores. mapped_only, planned(): as kiln.h says."},
    {"build", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(build)), METH_VARARGS | METH_KEYWORDS,
     "build(text, targets, deadline_ms=0, symbol_values=()): into the cache, for targets (commas between) of any "
     "host."},
    {"sized", sized, METH_VARARGS,
     "sized(text) -> SizedGraph: for programs of ever other sizes of a graph of symbols."},
    {"export", export_to, METH_VARARGS,
     "export(path, request): writes an export; the request is JSON (docs/export.md)."},
    {"stats", stats, METH_NOARGS, "Counters of this process, as JSON."},
    {"explain", explain, METH_NOARGS, "Why each miss was one, as JSON."},
    {"setting", setting, METH_O, "setting(key) -> str: a value of the configuration."},
    {"capture_get", capture_get, METH_VARARGS, "capture_get(key, fetch=False) -> bytes | None"},
    {"capture_put", capture_put, METH_VARARGS, "capture_put(key, data, name=None)"},
    {nullptr, nullptr, 0, nullptr},
};
// NOLINTEND(bugprone-casting-through-void)

PyType_Slot k_slots[] = {
    {Py_tp_new, reinterpret_cast<void*>(create_client)},
    {Py_tp_dealloc, reinterpret_cast<void*>(destroy_client)},
    {Py_tp_methods, k_methods},
    {0, nullptr},
};

PyType_Spec k_spec = {
    .name = "kiln._kiln.Client",
    .basicsize = sizeof(ClientObject),
    .itemsize = 0,
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = k_slots,
};

}  // namespace

void end_waits() { g_is_leaving = true; }

bool add_client_type(PyObject* module) {
  Handle type = Handle::steal(PyType_FromSpec(&k_spec));
  return type && PyModule_AddType(module, reinterpret_cast<PyTypeObject*>(type.get())) == 0;
}

}  // namespace kiln::python
