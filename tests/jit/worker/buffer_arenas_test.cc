#include "jit/worker/buffer_arenas.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "jit/worker/process_runner.h"

namespace kiln {
namespace {

std::vector<BufferArenas::Held> take_all(const BufferArenas& arenas) {
  std::vector<BufferArenas::Held> taken;
  for (BufferArenas::Held each = arenas.take(); each; each = arenas.take()) taken.push_back(std::move(each));
  return taken;
}

int64_t pages_of(const BufferArenas::Held& arena) {
  struct stat facts{};
  EXPECT_EQ(fstat(arena.file().get(), &facts), 0);
  return facts.st_blocks;
}

TEST(BufferArenas, each_has_one_holder_at_a_time) {
  const BufferArenas arenas;
  std::vector<BufferArenas::Held> taken = take_all(arenas);
  ASSERT_GE(taken.size(), 2U);
  EXPECT_FALSE(arenas.take());
  taken.pop_back();
  EXPECT_TRUE(arenas.take());
}

TEST(BufferArenas, what_a_killed_process_held_is_free_again) {
  const BufferArenas arenas;
  int told[2];
  ASSERT_EQ(pipe(told), 0);
  const pid_t child = fork();
  if (child == 0) {
    const BufferArenas own = arenas.reopened();
    const std::vector<BufferArenas::Held> taken = take_all(own);
    if (mmap(nullptr, 4'096, PROT_READ | PROT_WRITE, MAP_SHARED, taken.at(0).file().get(), 0) == MAP_FAILED) _exit(1);
    [[maybe_unused]] const ssize_t wrote = write(told[1], "x", 1);
    pause();
  }
  char said = 0;
  ASSERT_EQ(read(told[0], &said, 1), 1);
  EXPECT_FALSE(arenas.take());
  kill(child, SIGKILL);
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  EXPECT_TRUE(arenas.take());
}

TEST(BufferArenas, pages_go_from_one_holder_to_the_next_until_they_are_released) {
  const BufferArenas arenas;
  BufferArenas::Held held = arenas.take();
  ASSERT_EQ(pwrite(held.file().get(), "kiln", 4, 0), 4);
  EXPECT_GT(pages_of(held), 0);
  arenas.release();
  EXPECT_GT(pages_of(held), 0) << "of what is held nothing is released";
  held = {};
  held = arenas.take();
  char found[4] = {};
  ASSERT_EQ(pread(held.file().get(), found, 4, 0), 4);
  EXPECT_EQ(std::string_view(found, 4), "kiln");
  held = {};
  arenas.release();
  held = arenas.take();
  EXPECT_EQ(pages_of(held), 0);
}

TEST(BufferArenas, pages_beyond_a_bound_are_released_from_an_arena_that_is_held) {
  const BufferArenas arenas;
  const BufferArenas::Held held = arenas.take();
  ASSERT_EQ(pwrite(held.file().get(), "kiln", 4, BufferArenas::k_kept_bytes), 4);
  held.release_pages(BufferArenas::k_kept_bytes);
  EXPECT_EQ(pages_of(held), 0);
}

TEST(BufferArenas, runners_lie_in_arenas_while_there_are_any) {
  const BufferArenas arenas;
  const size_t count = take_all(arenas).size();
  std::vector<std::unique_ptr<CandidateRunner>> runners;
  for (size_t i = 0; i <= count; ++i) {
    auto runner = ProcessRunner::create({.executor_path = KILN_EXECUTOR_PATH, .arenas = &arenas});
    ASSERT_TRUE(runner.ok()) << runner.status().to_string();
    runners.push_back(std::move(*runner));
    for (const uint64_t bytes : {uint64_t{100}, uint64_t{100'000}}) {  // the second needs more than the first
      const auto buffers = runners.back()->prepare(std::vector<CandidateBuffer>{{bytes, {}}});
      ASSERT_TRUE(buffers.ok()) << buffers.status().to_string();
      (*buffers)[0].back() = static_cast<uint8_t>(i);
      // mov rax,[rdi]; inc byte [rax]; ret
      const Image image{.code = {0x48, 0x8b, 0x07, 0xfe, 0x00, 0xc3}, .entry = 0, .tasks = 1, .workspace_bytes = 0};
      (*buffers)[0][0] = 41;
      const auto run = runners.back()->run(image, 5'000, 1);
      ASSERT_TRUE(run.ok()) << run.status().to_string();
      EXPECT_TRUE(run->red_zones_intact);
      EXPECT_EQ((*buffers)[0][0], 42);
      EXPECT_EQ((*buffers)[0].back(), static_cast<uint8_t>(i));
    }
  }
  EXPECT_FALSE(arenas.take());
  runners.clear();
  EXPECT_EQ(take_all(arenas).size(), count);
}

}  // namespace
}  // namespace kiln
