#pragma once

#include "client/python/src/python_handle.h"

namespace kiln::python {

/// The Python type `Client(cache_directory=None, config_file=None, job_id=None, python=None)`: libkiln's client.
///
///   compile(text, inputs, outputs, deadline_ms=0, symbol_values=(), num_threads=0) -> Program
///   stats() -> str, explain() -> str        JSON
///   capture_get(key) -> bytes | None, capture_put(key, data)
///
/// Threading: from any thread at once; the GIL is released while it waits.
bool add_client_type(PyObject* module);

}  // namespace kiln::python
