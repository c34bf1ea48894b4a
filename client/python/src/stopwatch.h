#pragma once

#include "client/python/src/python_handle.h"

#include <cstdint>

namespace kiln::python {

/// The Python type `Stopwatch`: times calls, but for those within a call that is timed on this thread, and those that were
/// disturbed (note_disturbance).
///
///   watch.run(function, *arguments) -> what function(*arguments) gives
///
/// Attributes: calls; ns, their time; kiln_ns, what of it programs took. Threading: from any thread at once.
bool add_stopwatch_type(PyObject* module);

/// Adds its lifetime to what this thread spent in programs. On a device a call of a program ends before its work does.
class InProgram {
 public:
  InProgram();
  InProgram(const InProgram&) = delete;
  InProgram& operator=(const InProgram&) = delete;
  ~InProgram();

 private:
  const int64_t m_start;
};

/// To be told when something is compiled, loaded or checked: the calls that this happens in are no measure of time.
void note_disturbance();

}  // namespace kiln::python
