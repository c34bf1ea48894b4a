#pragma once

#include <chrono>
#include <string>
#include <string_view>

namespace kiln {

/// What a progress line says.
struct ProgressState {
  std::string label;  // what is worked on: "mlp.kiln (2 of 5)"
  uint64_t done = 0, total = 0;
  double elapsed_s = 0;
  std::string item;  // the current kernel
};

/// "[#####-----]  12/24  3.1/s  ETA 4.0 s  mlp.kiln  gemm_f32_…", at most `width` columns, names escaped.
/// Without a bar when width is 0.
std::string progress_line(const ProgressState& state, size_t width);

/// Progress on stderr: a bar that is redrawn on a terminal; elsewhere one line per ten seconds; nothing when quiet.
/// Threading: one thread.
class Progress {
 public:
  explicit Progress(bool is_quiet);
  ~Progress() { clear(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// Begins to count anew.
  void begin(std::string label);
  void update(uint64_t done, uint64_t total, std::string_view item);
  /// Takes the bar off the terminal, so that something else can be printed.
  void clear();

 private:
  using Clock = std::chrono::steady_clock;

  const bool m_quiet;
  const bool m_terminal;
  bool m_drawn = false;
  ProgressState m_state;
  Clock::time_point m_start = Clock::now();
  Clock::time_point m_last;
};

}  // namespace kiln
