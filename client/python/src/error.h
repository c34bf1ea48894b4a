#pragma once

#include "client/include/kiln.h"
#include "client/python/src/python_handle.h"

namespace kiln::python {

/// Adds `Error` to the module: an Exception with attributes `code`, one of kiln_code, `code_name`, `message` and `op`.
bool add_error_type(PyObject* module);

/// Sets the Python error that stands for `error` and destroys it. out_of_range is torch's own words for an
/// index that is outside its table, an IndexError; all others are kiln's Error.
void set_error(kiln_error* error);

/// The bytes as str (or bytes) and destroys them.
PyObject* take_text(kiln_bytes* bytes);
PyObject* take_bytes(kiln_bytes* bytes);

}  // namespace kiln::python
