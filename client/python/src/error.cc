#include "client/python/src/error.h"

#include <cstring>

namespace kiln::python {

namespace {

PyObject* g_error_type = nullptr;  // lives as long as the process, as types of extension modules do

}  // namespace

bool add_error_type(PyObject* module) {
  g_error_type = PyErr_NewExceptionWithDoc("kiln.Error",
                                           "What Kiln could not do. `code` is Abseil's canonical number, `code_name` "
                                           "its name, `message` says why, `op` names the "
                                           "op that could not be had or is empty.",
                                           nullptr, nullptr);
  return g_error_type != nullptr && PyModule_AddObjectRef(module, "Error", g_error_type) == 0;
}

void set_error(kiln_error* error) {
  if (PyErr_Occurred() != nullptr) {  // a signal's handler raised while the call waited
    kiln_error_destroy(error);
    return;
  }
  if (kiln_error_code(error) == KILN_OUT_OF_RANGE) {
    PyErr_SetString(PyExc_IndexError, "index out of range in self");
    kiln_error_destroy(error);
    return;
  }
  Handle code = Handle::steal(PyLong_FromLong(kiln_error_code(error)));
  Handle code_name = Handle::steal(PyUnicode_FromString(kiln_code_name(kiln_error_code(error))));
  Handle message = Handle::steal(PyUnicode_DecodeUTF8(
      kiln_error_message(error), static_cast<Py_ssize_t>(std::strlen(kiln_error_message(error))), "replace"));
  Handle op = Handle::steal(PyUnicode_DecodeUTF8(
      kiln_error_op(error), static_cast<Py_ssize_t>(std::strlen(kiln_error_op(error))), "replace"));
  kiln_error_destroy(error);
  if (!code || !code_name || !message || !op) return;
  Handle exception = Handle::steal(PyObject_CallFunctionObjArgs(g_error_type, message.get(), nullptr));
  if (!exception || PyObject_SetAttrString(exception.get(), "code", code.get()) < 0 ||
      PyObject_SetAttrString(exception.get(), "code_name", code_name.get()) < 0 ||
      PyObject_SetAttrString(exception.get(), "message", message.get()) < 0 ||
      PyObject_SetAttrString(exception.get(), "op", op.get()) < 0) {
    return;
  }
  PyErr_SetObject(g_error_type, exception.get());
}

PyObject* take_text(kiln_bytes* bytes) {
  PyObject* text =
      PyUnicode_DecodeUTF8(kiln_bytes_data(bytes), static_cast<Py_ssize_t>(kiln_bytes_size(bytes)), "replace");
  kiln_bytes_destroy(bytes);
  return text;
}

PyObject* take_bytes(kiln_bytes* bytes) {
  PyObject* object = PyBytes_FromStringAndSize(kiln_bytes_data(bytes), static_cast<Py_ssize_t>(kiln_bytes_size(bytes)));
  kiln_bytes_destroy(bytes);
  return object;
}

}  // namespace kiln::python
