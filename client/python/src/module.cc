// The extension module kiln._kiln: libkiln for Python, with tensors exchanged by DLPack's C table so that
// nothing of torch is linked and one build serves all versions of it. What is not on the hot path is written
// in Python.

#include "client/python/src/client.h"
#include "client/python/src/error.h"
#include "client/python/src/exported.h"
#include "client/python/src/program.h"
#include "client/python/src/sized_graph.h"
#include "client/python/src/stopwatch.h"

namespace kiln::python {

namespace {

PyObject* attach(PyObject*, PyObject* arguments) {
  PyObject* tensor_type = nullptr;
  PyObject* relayout = nullptr;
  if (!PyArg_ParseTuple(arguments, "OO", &tensor_type, &relayout)) return nullptr;
  if (!attach_tensors(tensor_type, relayout)) return nullptr;
  Py_RETURN_NONE;
}

PyObject* normalise(PyObject*, PyObject* text) {
  Py_ssize_t size = 0;
  const char* data = PyUnicode_AsUTF8AndSize(text, &size);
  if (data == nullptr) return nullptr;
  kiln_graph* graph = nullptr;
  kiln_bytes* printed = nullptr;
  kiln_error* error = kiln_graph_parse(data, static_cast<size_t>(size), &graph);
  if (error == nullptr) {
    error = kiln_graph_print(graph, &printed);
    kiln_graph_destroy(graph);
  }
  if (error != nullptr) {
    set_error(error);
    return nullptr;
  }
  return take_text(printed);
}

PyObject* version(PyObject*, PyObject*) { return PyUnicode_FromString(kiln_version()); }

PyObject* disturb(PyObject*, PyObject*) {
  note_disturbance();
  Py_RETURN_NONE;
}

PyObject* end_all_waits(PyObject*, PyObject*) {
  end_waits();
  Py_RETURN_NONE;
}

PyMethodDef k_functions[] = {
    {"attach", attach, METH_VARARGS,
     "attach(tensor_type, relayout): exchange tensors of this type; relayout(tensor, strides) copies one "
     "into strides."},
    {"end_waits", end_all_waits, METH_NOARGS,
     "From here on nobody in this process waits for the daemon: waits end with `cancelled`, and the work goes on."},
    {"normalise", normalise, METH_O, "normalise(text) -> text: a graph's text form, read and printed again."},
    {"note_disturbance", disturb, METH_NOARGS,
     "To be told when something is compiled, loaded or checked: the calls that this happens in are no measure of "
     "time."},
    {"version", version, METH_NOARGS, "libkiln's version."},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef k_module = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "kiln._kiln",
    .m_doc = "libkiln for Python.",
    .m_size = -1,
    .m_methods = k_functions,
};

}  // namespace

}  // namespace kiln::python

// NOLINTNEXTLINE(bugprone-reserved-identifier,readability-identifier-naming): the name that CPython looks for
PyMODINIT_FUNC PyInit__kiln() {
  using namespace kiln::python;
  Handle module = Handle::steal(PyModule_Create(&k_module));
  if (!module || !add_error_type(module.get()) || !add_client_type(module.get()) || !add_exported_type(module.get()) ||
      !add_program_type(module.get()) || !add_sized_graph_type(module.get()) || !add_stopwatch_type(module.get())) {
    return nullptr;
  }
  return module.release();
}
