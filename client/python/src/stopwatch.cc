#include "client/python/src/stopwatch.h"

#include <structmember.h>
#include <time.h>

#include <atomic>

namespace kiln::python {

namespace {

std::atomic<uint64_t> g_disturbances = 0;
thread_local int64_t t_in_programs = 0;  // nanoseconds
thread_local bool t_is_timed = false;

int64_t now() {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * int64_t{1'000'000'000} + time.tv_nsec;
}

// The GIL guards the counts.
struct StopwatchObject {
  PyObject_HEAD long long calls;
  long long ns;
  long long kiln_ns;
};

PyObject* run(PyObject* object, PyObject* const* arguments, Py_ssize_t count) {
  if (count < 1) {
    PyErr_SetString(PyExc_TypeError, "run() takes a function, and its arguments");
    return nullptr;
  }
  const auto call = [&] {
    return PyObject_Vectorcall(arguments[0], arguments + 1, static_cast<size_t>(count - 1), nullptr);
  };
  if (t_is_timed) return call();
  const uint64_t disturbances = g_disturbances;
  const int64_t in_programs = t_in_programs;
  const int64_t start = now();
  t_is_timed = true;
  PyObject* result = call();
  t_is_timed = false;
  if (disturbances == g_disturbances) {
    auto* self = reinterpret_cast<StopwatchObject*>(object);
    self->ns += now() - start;
    self->kiln_ns += t_in_programs - in_programs;
    ++self->calls;
  }
  return result;
}

void destroy(PyObject* object) { free_object(object); }

PyMethodDef k_methods[] = {
    {"run", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(run)), METH_FASTCALL,
     "run(function, *arguments) -> what function(*arguments) gives."},
    {nullptr, nullptr, 0, nullptr},
};

PyMemberDef k_members[] = {
    {"calls", T_LONGLONG, offsetof(StopwatchObject, calls), READONLY, "How many calls were timed."},
    {"ns", T_LONGLONG, offsetof(StopwatchObject, ns), READONLY, "Their time, in nanoseconds."},
    {"kiln_ns", T_LONGLONG, offsetof(StopwatchObject, kiln_ns), READONLY,
     "What programs took of it; on a device a call of a program ends before its work does."},
    {nullptr, 0, 0, 0, nullptr},
};

PyType_Slot k_slots[] = {
    {Py_tp_dealloc, reinterpret_cast<void*>(destroy)},
    {Py_tp_new, reinterpret_cast<void*>(PyType_GenericNew)},
    {Py_tp_methods, k_methods},
    {Py_tp_members, k_members},
    {Py_tp_doc, const_cast<char*>("Times calls, but for those within a timed one, and those that were disturbed.")},
    {0, nullptr},
};

PyType_Spec k_spec = {
    .name = "kiln._kiln.Stopwatch",
    .basicsize = sizeof(StopwatchObject),
    .itemsize = 0,
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = k_slots,
};

}  // namespace

bool add_stopwatch_type(PyObject* module) {
  const Handle type = Handle::steal(PyType_FromSpec(&k_spec));
  return type && PyModule_AddType(module, reinterpret_cast<PyTypeObject*>(type.get())) == 0;
}

InProgram::InProgram() : m_start(now()) {}

InProgram::~InProgram() { t_in_programs += now() - m_start; }

void note_disturbance() { ++g_disturbances; }

}  // namespace kiln::python
