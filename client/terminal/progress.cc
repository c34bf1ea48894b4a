#include "client/terminal/progress.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "base/printable.h"
#include "client/terminal/text.h"

namespace kiln {
namespace {

constexpr auto k_line_interval = std::chrono::seconds(10);         // for logs of CI jobs
constexpr auto k_redraw_interval = std::chrono::milliseconds(50);  // faster than the eye, slower than a terminal

size_t terminal_width() {
  winsize size{};
  constexpr size_t k_usual = 80;
  return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : k_usual;
}

std::string bar(uint64_t done, uint64_t total) {
  constexpr uint64_t k_cells = 10;  // a terminal of 80 columns has room for the best time of a race, too
  const uint64_t full = total == 0 ? 0 : std::min(done, total) * k_cells / total;
  return "[" + std::string(full, '#') + std::string(k_cells - full, '-') + "] ";
}

}  // namespace

std::string progress_line(const ProgressState& state, size_t width) {
  std::string line = width == 0 ? "" : bar(state.done, state.total);
  line += fmt::format("{}/{}", state.done, state.total);
  if (state.done > 0 && state.elapsed_s > 0) {
    const double rate = static_cast<double>(state.done) / state.elapsed_s;
    const double left_s = static_cast<double>(state.total - std::min(state.done, state.total)) / rate;
    line += fmt::format("  {:.1f}/s  ETA {}", rate, human_duration(static_cast<uint64_t>(left_s * 1e3)));
  }
  line += "  " + escaped(state.label);
  if (!state.item.empty()) line += "  " + escaped(state.item);
  // One column is left free: terminals differ in when they wrap. Cut bytes could split a character; columns cannot.
  while (width != 0 && width_of(line) >= width) {
    while ((static_cast<unsigned char>(line.back()) & 0xc0U) == 0x80) line.pop_back();
    line.pop_back();
  }
  return line;
}

Progress::Progress(bool is_quiet) : m_quiet(is_quiet), m_terminal(isatty(STDERR_FILENO) == 1) {}

void Progress::begin(std::string label) {
  m_state = {.label = std::move(label)};
  m_start = Clock::now();
  m_last = m_terminal ? Clock::time_point() : m_start;
}

void Progress::update(uint64_t done, uint64_t total, std::string_view item) {
  const auto now = Clock::now();
  m_state.done = done, m_state.total = total, m_state.item = item;
  m_state.elapsed_s = std::chrono::duration<double>(now - m_start).count();
  if (m_quiet || (now - m_last < (m_terminal ? k_redraw_interval : k_line_interval) && done < total)) return;
  if (!m_terminal && now - m_last < k_line_interval) return;
  m_last = now;
  if (m_terminal) {
    std::fprintf(stderr, "\r%s\x1b[K", progress_line(m_state, terminal_width()).c_str());
    m_drawn = true;
  } else {
    std::fprintf(stderr, "%s\n", progress_line(m_state, 0).c_str());
  }
}

void Progress::clear() {
  if (m_drawn) std::fputs("\r\x1b[K", stderr);
  m_drawn = false;
}

}  // namespace kiln
