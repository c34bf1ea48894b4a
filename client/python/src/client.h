#pragma once

#include "client/python/src/python_handle.h"

namespace kiln::python {

/// The Python type `Client(cache_directory=None, config_file=None, device=None, python=None)`: libkiln's
/// client.
///
///   compile(text, inputs, outputs, deadline_ms=0, symbol_values=(), num_threads=0, memory=None) -> Program
///       memory: DLPack's (device type, number) of its tensors, for a client of a device
///   build(text, targets, deadline_ms=0, symbol_values=())      for devices by the names of their targets
///   sized(text) -> SizedGraph
///   stats() -> str, explain() -> str        JSON
///   capture_get(key, fetch=False) -> bytes | None, capture_put(key, data, name=None)
///
/// Threading: from any thread at once; the GIL is released while it waits.
bool add_client_type(PyObject* module);

/// From here on nobody in this process waits for the daemon.
void end_waits();

}  // namespace kiln::python
