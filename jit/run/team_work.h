#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <span>

namespace kiln {

/// How the threads of one run share the tasks of its launches.
///
/// Each thread has one contiguous range of every launch, since neighbouring tasks share packed operands. It takes its
/// range from the front, in pieces that halve; who has nothing left takes from the back of another's. A launch is over
/// when its tasks are, not when every thread has been there: a thread that the system has put aside holds nothing up
/// but the piece it is in, and finds the launches it missed done. A thread that is alone takes all at once.
///
/// Threading: all members but the constructor from any thread of the team.
class TeamWork {
 public:
  struct Piece {
    uint64_t first = 0, last = 0;
  };

  static size_t state_bytes(size_t launches, uint32_t team) { return launches * (team + 1) * sizeof(Word); }

  /// `state`: state_bytes() bytes, 8-byte aligned, zeroed here; must outlive this.
  TeamWork(void* state, size_t launches, uint32_t team);

  /// The next tasks of `launch` that `thread` is to run; none when all are given out.
  std::optional<Piece> take(size_t launch, uint32_t thread, uint64_t tasks);
  /// `count` tasks of the launch have been run.
  void finish(size_t launch, uint64_t count) { m_finished[launch].fetch_add(count, std::memory_order_release); }
  /// Returns when all tasks of the launch have been run; what they wrote is visible then.
  void wait(size_t launch, uint64_t tasks) const;

 private:
  using Word = std::atomic<uint64_t>;

  std::optional<Piece> take_from(Word& taken, uint64_t first, uint64_t last, bool from_front);

  uint32_t m_team;
  Word* m_taken;     // per launch and thread: tasks taken from the front (low half) and the back of its range
  Word* m_finished;  // per launch
};

}  // namespace kiln
