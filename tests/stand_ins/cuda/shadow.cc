#include "tests/stand_ins/cuda/shadow.h"

namespace kiln::cuda_emulator {

bool Shadow::ordered(const Moment& earlier, const Toucher& toucher, bool through_fence) const {
  if (earlier.era == 0) return true;
  // Another cluster: its shared memory was another one, and nothing orders its accesses to global memory.
  if (earlier.era != toucher.era) return m_kind == Kind::shared;
  if (!through_fence && earlier.agent == toucher.agent) return true;
  const VectorClock& clock = through_fence ? toucher.knowledge->fenced : toucher.knowledge->happened;
  return earlier.moment <= clock[earlier.agent];
}

const char* Shadow::conflict_of_read(const Cell& cell, const Toucher& toucher) const {
  if (cell.writes_in_flight > 0) return "an asynchronous copy still writes it";
  const bool written =
      cell.initial || (m_kind == Kind::shared ? cell.written.era == toucher.era : cell.written.era != 0);
  if (!written) return "nobody has written it";
  if (!ordered(cell.written, toucher, false)) return "nothing orders this after the write of it";
  if (toucher.proxy == Proxy::async && cell.written_by == Proxy::generic && !ordered(cell.written, toucher, true)) {
    return "no proxy fence lies between the write of it and this";
  }
  return nullptr;
}

const char* Shadow::conflict_of_write(const Cell& cell, const Toucher& toucher) const {
  if (cell.writes_in_flight > 0) return "an asynchronous copy still writes it";
  if (cell.reads_in_flight > 0) return "an asynchronous operation still reads it";
  if (!ordered(cell.written, toucher, false)) return "nothing orders this after an earlier write of it";
  if (toucher.proxy == Proxy::async && cell.written_by == Proxy::generic && !ordered(cell.written, toucher, true)) {
    return "no proxy fence lies between an earlier write of it and this";
  }
  for (const Moment& read : cell.read) {
    if (!ordered(read, toucher, false)) return "nothing orders this after a read of it";
  }
  return nullptr;
}

void Shadow::record_read(Cell& cell, const Toucher& toucher) {
  const Moment now{toucher.era, toucher.agent, toucher.moment};
  for (Moment& read : cell.read) {
    if (read.era != toucher.era || read.agent == toucher.agent) {
      if (m_kind == Kind::global && read.era != 0 && read.era != toucher.era) continue;
      read = now;
      return;
    }
  }
  m_draw = m_draw * 1664525 + 1013904223;
  cell.read[m_draw >> 31] = now;
}

void Shadow::record_write(Cell& cell, const Toucher& toucher) {
  cell.written = {toucher.era, toucher.agent, toucher.moment};
  cell.written_by = toucher.proxy;
  cell.read = {};
}

const char* Shadow::conflict_among(Conflict conflict_of, size_t first, size_t size, const Toucher& toucher) const {
  for (size_t i = first; i < first + size; ++i) {
    if (i > first && m_cells[i] == m_cells[i - 1]) continue;
    if (const char* conflict = (this->*conflict_of)(m_cells[i], toucher)) return conflict;
  }
  return nullptr;
}

const char* Shadow::read(size_t first, size_t size, const Toucher& toucher) {
  if (const char* conflict = conflict_among(&Shadow::conflict_of_read, first, size, toucher)) return conflict;
  for (size_t i = first; i < first + size; ++i) record_read(m_cells[i], toucher);
  return nullptr;
}

const char* Shadow::write(size_t first, size_t size, const Toucher& toucher) {
  if (const char* conflict = conflict_among(&Shadow::conflict_of_write, first, size, toucher)) return conflict;
  for (size_t i = first; i < first + size; ++i) record_write(m_cells[i], toucher);
  return nullptr;
}

const char* Shadow::begin_read(size_t first, size_t size, const Toucher& toucher) {
  if (const char* conflict = conflict_among(&Shadow::conflict_of_read, first, size, toucher)) return conflict;
  for (size_t i = first; i < first + size; ++i) ++m_cells[i].reads_in_flight;
  return nullptr;
}

const char* Shadow::begin_write(size_t first, size_t size, const Toucher& toucher) {
  if (const char* conflict = conflict_among(&Shadow::conflict_of_write, first, size, toucher)) return conflict;
  for (size_t i = first; i < first + size; ++i) ++m_cells[i].writes_in_flight;
  return nullptr;
}

void Shadow::end_read(size_t first, size_t size, const Toucher& toucher) {
  for (size_t i = first; i < first + size; ++i) {
    --m_cells[i].reads_in_flight;
    record_read(m_cells[i], toucher);
  }
}

void Shadow::end_write(size_t first, size_t size, const Toucher& toucher) {
  for (size_t i = first; i < first + size; ++i) {
    --m_cells[i].writes_in_flight;
    record_write(m_cells[i], toucher);
  }
}

void Shadow::initialise(size_t first, size_t size) {
  for (size_t i = first; i < first + size; ++i) m_cells[i].initial = true;
}

}  // namespace kiln::cuda_emulator
