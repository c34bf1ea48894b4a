#include "jit/run/data_flow.h"

namespace kiln {

Status damaged(std::string_view what) { return error(StatusCode::data_loss, "program: {}", what); }

namespace {

bool overlap(const DataFlow::Access& a, const DataFlow::Access& b) {
  if (a.place != b.place) return false;
  if (a.place != DataFlow::Place::scratch) return a.index == b.index;
  return a.offset < b.offset + b.bytes && b.offset < a.offset + a.bytes;
}

}  // namespace

Status DataFlow::add(std::span<const Access> launch) {
  for (const Access& access : launch) {
    if (access.role != Role::written && !holds(access)) return damaged("a launch reads what nothing wrote");
    if (access.role == Role::read) continue;
    if (access.place == Place::input || access.place == Place::constant) return damaged("a launch writes an input");
    for (const Access& other : launch) {
      if (&other != &access && overlap(access, other)) return damaged("a launch writes over its own buffers");
    }
  }
  for (const Access& access : launch) {
    if (access.role != Role::read) write(access);
  }
  return {};
}

bool DataFlow::holds(const Access& access) const {
  if (access.place == Place::output) return m_is_written[access.index];
  if (access.place != Place::scratch || access.bytes == 0) return true;
  const auto found = m_scratch.find(access.offset);
  return found != m_scratch.end() && found->second == access.offset + access.bytes;
}

void DataFlow::write(const Access& access) {
  if (access.place == Place::output) m_is_written[access.index] = true;
  if (access.place != Place::scratch || access.bytes == 0) return;
  const uint64_t end = access.offset + access.bytes;
  auto at = m_scratch.lower_bound(access.offset);
  if (at != m_scratch.begin() && std::prev(at)->second > access.offset) --at;
  while (at != m_scratch.end() && at->first < end) at = m_scratch.erase(at);
  m_scratch[access.offset] = end;
}

}  // namespace kiln
