#pragma once

#include "client/include/kiln.h"
#include "client/python/src/python_handle.h"

namespace kiln::python {

/// The Python type `SizedGraph`, which Client.sized() makes: a graph of symbols, of which programs for ever other sizes are wanted.
///
///   program(symbol_values, inputs, outputs) -> Program | None      on the host; None: none in the cache serves these sizes
///   build(symbol_values, deadline_ms=0, label=None)                waits until the daemon has built what serves them
///   known: int                                                     how many programs for many sizes have served so far
///
/// Threading: from any thread at once; the GIL is released while it waits. Errors: kiln's Error.
bool add_sized_graph_type(PyObject* module);

/// Wraps `graph`, taking it over in any case. `client`, whose it is, is kept alive as long.
PyObject* wrap_sized_graph(kiln_sized_graph* graph, PyObject* client);

}  // namespace kiln::python
