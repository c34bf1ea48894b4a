#include "service/background_tuner.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <thread>

#include "base/limits.h"
#include "service/guarded.h"
#include "service/provenance.h"

namespace kiln {

namespace {

namespace asio = boost::asio;

/// More than this, over some glances, is somebody's work, be it a step now and then; less are daemons, shells and this one.
/// A training step of 42 ms every third of a second (0.12) took 1.3 times as long on average while three daemons raced. [processors]
constexpr double k_quiet_processors = 0.1;
/// What ends a job that runs. Its glances are short, so a tick of 10 ms is more than the above. [processors]
constexpr double k_busy_processors = 0.25;
/// The machine is quiet after so many glances, and busy again after so many while a job runs.
constexpr uint32_t k_quiet_glances = 3, k_busy_glances = 2;
constexpr auto k_glance_interval = std::chrono::milliseconds(700);
constexpr auto k_running_glance_interval = std::chrono::milliseconds(150);

}  // namespace

void BackgroundTuner::start() {
  m_is_stopped = false;
  schedule();
}

void BackgroundTuner::stop() {
  m_is_stopped = true;
  m_timer.cancel();
  m_next.reset();
  interrupt();
}

void BackgroundTuner::look_again() {
  m_may_have_work = true;
  if (m_job == 0) m_next.reset();
}

void BackgroundTuner::interrupt() {
  m_quiet = 0;
  if (m_job != 0) m_around.pool.cancel(m_job);
}

void BackgroundTuner::schedule() {
  m_timer.expires_after(m_job != 0 ? k_running_glance_interval : k_glance_interval);
  m_timer.async_wait([this](boost::system::error_code failure) {
    if (failure || m_is_stopped) return;
    tick();
    schedule();
  });
}

void BackgroundTuner::tick() {
  const auto busy = m_watch.busy_processors();
  if (!busy) return;
  const bool has_builds = m_around.has_builds();
  const bool is_busy = *busy > (m_job != 0 ? k_busy_processors : k_quiet_processors) || has_builds;
  m_busy = is_busy ? m_busy + 1 : 0;
  m_quiet = is_busy ? 0 : m_quiet + 1;
  if (m_job != 0) {
    if (m_busy == k_busy_glances) interrupt();
  } else if (m_next && m_quiet >= k_quiet_glances) {
    run();
  } else if (!m_next && m_may_have_work && !m_is_asking && !has_builds) {
    ask_store();
  }
}

void BackgroundTuner::ask_store() {
  m_is_asking = true;
  m_may_have_work = false;
  asio::post(m_around.store_thread, [this, except = m_given_up] {
    auto found = guarded([&] { return m_around.store.next_untuned(except); });
    asio::post(m_around.io, [this, found = std::move(found)]() mutable {
      m_is_asking = false;
      if (!found.ok()) return spdlog::warn("looking for programs to tune: {}", found.status().message());
      if (!m_is_stopped) m_next = std::move(found).value();
    });
  });
}

void BackgroundTuner::run() {
  const auto program = std::make_shared<UntunedProgram>(std::move(*m_next));
  m_next.reset();
  m_around.events.record("tuning", "{}", title_of(program->key, program->name));
  BuildRequest request{program->graph, {program->target}, m_around.cache_directory, Tuning::background};
  request.name = program->name;
  m_kept_races = 0;
  m_job = m_around.pool.submit(
      std::move(request), protocol::Priority::background,
      [this](std::string_view stage, uint64_t done, uint64_t total, std::string_view item) {
        asio::post(m_around.io,
                   [this, progress = protocol::Progress{0, std::string(stage), std::string(item), done, total}] {
                     if (m_job != 0) m_progress = progress;
                   });
      },
      [this](const std::shared_ptr<const BuildResult>& found) {
        asio::post(m_around.io, [this, raced = found->raced] { count(raced); });
        asio::post(m_around.store_thread, [this, found] { m_around.supplies.keep(*found, m_around.store); });
      },
      [this, program](JobOutcome outcome) {
        asio::post(m_around.io,
                   [this, program, outcome = std::move(outcome)]() mutable { on_done(program, std::move(outcome)); });
      });
}

/// A job that was ended, or did not finish, leaves its program for another time.
void BackgroundTuner::on_done(const std::shared_ptr<UntunedProgram>& program, JobOutcome outcome) {
  m_job = 0;
  m_progress = {};
  m_may_have_work = true;
  const Status status = outcome.result.status();
  if (status.code() == StatusCode::cancelled || status.code() == StatusCode::unavailable) {
    m_around.events.record("tuning stopped", "{}", title_of(program->key, program->name));
    return;
  }
  if (!status.ok()) {
    spdlog::warn("tuning {}: {}", title_of(program->key, program->name), status.to_string());
    m_around.events.record("tuning failed", "{}: {}", title_of(program->key, program->name), status.message());
    return give_up(program->key);
  }
  m_is_asking = true;
  const std::shared_ptr<BuildResult> result = result_of(std::move(outcome));
  asio::post(m_around.store_thread, [this, program, result] {
    const Status published =
        guarded([&] { return m_around.store.publish(*result, program->graph, /*replaces=*/false); });
    asio::post(m_around.io, [this, program, result, published] {
      m_is_asking = false;
      on_published(*program, *result, published);
    });
    if (published.ok()) m_around.supplies.offer(*result, m_around.store);
  });
}

void BackgroundTuner::on_published(const UntunedProgram& program, const BuildResult& result, const Status& status) {
  m_around.counters.add(Counter::compilations, result.compilations);
  if (!status.ok()) {
    spdlog::warn("what tuning {} gave is not kept: {}", title_of(program.key, program.name), status.message());
    return give_up(program.key);
  }
  count(result.raced - std::min(result.raced, m_kept_races));
  m_around.events.record("tuned", "{}: {} kernels raced{}", title_of(program.key, program.name), result.raced,
                         result.is_tuned ? "" : ", more are left");
  spdlog::debug("tuning {}: {}", title_of(program.key, program.name), result.report);
  if (result.raced == 0 && !result.is_tuned) give_up(program.key);
}

void BackgroundTuner::count(uint32_t races) {
  m_kept_races += races;
  m_around.counters.add(Counter::kernels_tuned, races);
}

/// Until the next daemon. At the bound all have another chance.
void BackgroundTuner::give_up(const Digest& key) {
  if (m_given_up.size() >= limits::k_quarantined_keys) m_given_up.clear();
  m_given_up.insert(key);
}

}  // namespace kiln
