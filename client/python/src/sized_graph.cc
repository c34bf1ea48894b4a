#include "client/python/src/sized_graph.h"

#include "client/python/src/error.h"
#include "client/python/src/program.h"

namespace kiln::python {

namespace {

struct SizedGraphObject {
  PyObject_HEAD kiln_sized_graph* graph;
  PyObject* client;
};

PyTypeObject* g_type = nullptr;

kiln_sized_graph* graph_of(PyObject* object) { return reinterpret_cast<SizedGraphObject*>(object)->graph; }

PyObject* program(PyObject* self, PyObject* arguments) {
  PyObject* values = nullptr;
  PyObject* inputs = nullptr;
  PyObject* outputs = nullptr;
  if (!PyArg_ParseTuple(arguments, "OOO", &values, &inputs, &outputs)) return nullptr;
  std::vector<int64_t> sizes;
  if (!read_symbols(values, sizes)) return nullptr;
  kiln_program* found = nullptr;
  kiln_error* error = nullptr;
  Py_BEGIN_ALLOW_THREADS;
  error = kiln_sized_graph_program(graph_of(self), sizes.data(), sizes.size(), &found);
  Py_END_ALLOW_THREADS;
  if (error != nullptr) {
    set_error(error);
    return nullptr;
  }
  if (found == nullptr) Py_RETURN_NONE;
  return wrap_program(found, self, inputs, outputs, {});
}

PyObject* build(PyObject* self, PyObject* arguments, PyObject* keywords) {
  static const char* k_names[] = {"symbol_values", "deadline_ms", "label", nullptr};
  PyObject* values = nullptr;
  unsigned int deadline_ms = 0;
  kiln_compile_options options{.struct_size = sizeof(kiln_compile_options)};
  if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "O|Iz", const_cast<char**>(k_names), &values, &deadline_ms,
                                   &options.label)) {
    return nullptr;
  }
  std::vector<int64_t> sizes;
  if (!read_symbols(values, sizes)) return nullptr;
  options.deadline_ms = deadline_ms;
  options.symbol_values = sizes.data();
  options.symbol_count = sizes.size();
  kiln_error* error = nullptr;
  Py_BEGIN_ALLOW_THREADS;
  error = kiln_sized_graph_build(graph_of(self), &options);
  Py_END_ALLOW_THREADS;
  if (error != nullptr) {
    set_error(error);
    return nullptr;
  }
  Py_RETURN_NONE;
}

PyObject* known(PyObject* self, void*) { return PyLong_FromSize_t(kiln_sized_graph_known(graph_of(self))); }

void destroy(PyObject* object) {
  kiln_sized_graph_destroy(graph_of(object));
  Py_XDECREF(reinterpret_cast<SizedGraphObject*>(object)->client);
  free_object(object);
}

// NOLINTBEGIN(bugprone-casting-through-void): Python keeps functions of all forms as one type
PyMethodDef k_methods[] = {
    {"program", program, METH_VARARGS, "program(symbol_values, inputs, outputs) -> Program | None"},
    {"build", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(build)), METH_VARARGS | METH_KEYWORDS,
     "build(symbol_values, deadline_ms=0, label=None)"},
    {nullptr, nullptr, 0, nullptr},
};
// NOLINTEND(bugprone-casting-through-void)

PyGetSetDef k_attributes[] = {
    {"known", known, nullptr, "How many programs for many sizes have served so far.", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};

PyType_Slot k_slots[] = {
    {Py_tp_dealloc, reinterpret_cast<void*>(destroy)},
    {Py_tp_methods, k_methods},
    {Py_tp_getset, k_attributes},
    {0, nullptr},
};

PyType_Spec k_spec = {
    .name = "kiln._kiln.SizedGraph",
    .basicsize = sizeof(SizedGraphObject),
    .itemsize = 0,
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = k_slots,
};

}  // namespace

bool add_sized_graph_type(PyObject* module) {
  g_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&k_spec));
  return g_type != nullptr && PyModule_AddType(module, g_type) == 0;
}

PyObject* wrap_sized_graph(kiln_sized_graph* graph, PyObject* client) {
  SizedGraphObject* self = PyObject_New(SizedGraphObject, g_type);
  if (self == nullptr) {
    kiln_sized_graph_destroy(graph);
    return nullptr;
  }
  self->graph = graph;
  self->client = Py_NewRef(client);
  return reinterpret_cast<PyObject*>(self);
}

}  // namespace kiln::python
