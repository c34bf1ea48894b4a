#include "service/server.h"

#include <fcntl.h>
#include <spdlog/spdlog.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio.hpp>
#include <cerrno>
#include <cstring>
#include <map>
#include <optional>

#include "base/limits.h"
#include "service/background_tuner.h"
#include "service/build_messages.h"
#include "service/counters.h"
#include "service/flight_recorder.h"
#include "service/guarded.h"
#include "service/job_table.h"
#include "service/listening_socket.h"
#include "service/published_programs.h"
#include "service/session.h"
#include "service/shared_captures.h"
#include "service/status_json.h"
#include "service/supplies.h"
#include "service/unkept_results.h"
#include "service/worker_pool.h"

namespace kiln {
namespace {

namespace asio = boost::asio;
using boost::system::error_code;
using protocol::Verb;

/// How soon a daemon whose directory is gone leaves when nobody asks it anything; one stat each.
constexpr auto k_watch_interval = std::chrono::seconds(1);

/// How soon a daemon leaves once what it offers is written.
constexpr auto k_offering_glance = std::chrono::milliseconds(20);

}  // namespace

class Server::Impl final : SessionHost {
 public:
  Impl(Options options, std::unique_ptr<EntryStore> store)
      : m_options(std::move(options)),
        m_supplies(m_options.config),
        m_signals(m_io, SIGTERM, SIGINT),
        m_acceptor(m_io),
        m_idle_timer(m_io),
        m_drain_timer(m_io),
        m_watch_timer(m_io),
        m_heartbeat_timer(m_io),
        m_store(std::move(store)),
        m_store_thread(1),
        m_pool(std::make_unique<WorkerPool>(WorkerPool::options_of(m_options.config, m_options.worker_program),
                                            m_supplies)),
        m_tuner({m_io, m_store_thread, *m_store, m_supplies, *m_pool, m_counters, m_events,
                 m_options.config.cache_directory, [this] { return m_jobs.running() + m_jobs.queued() > 0; }}) {}

  ~Impl() {
    // Nothing may call back into what is being destroyed: first the threads that post, then what they post
    // to.
    m_pool.reset();
    m_store_thread.join();
    for (const auto& [id, entry] : std::exchange(m_sessions, {})) entry.session->stop();
  }

  Status listen(UniqueFd handed_over);
  void run();

 private:
  struct Peer {
    std::shared_ptr<Session> session;
    pid_t pid = 0;
  };

  asio::awaitable<void> accept_all();
  void admit(UniqueFd socket);

  void on_build(uint64_t session, protocol::Build build) override;
  void on_command(uint64_t session, protocol::Command command) override;
  void on_partial(uint64_t session) override;
  void on_closed(uint64_t session, const Status& reason) override;

  bool answer_found(uint64_t session, const protocol::Build& build);
  void start_jobs();
  void submit(const JobTable::Job& job);
  void publish(const Digest& key, std::shared_ptr<BuildResult> result);
  void on_progress(const Digest& key, const protocol::Progress& progress);
  void on_built(const Digest& key, JobOutcome outcome);
  void put_back(const Digest& key);
  void on_published(const Digest& key, std::shared_ptr<BuildResult> result, const Status& status);
  void fail_job(const Digest& key, const Status& status, uint32_t signal);
  void answer(uint64_t session, const protocol::Message& message);
  void answer_command(uint64_t session, uint32_t id, const Expected<std::string>& json);

  /// A daemon that leaves starts nothing: what waits is the next one's.
  bool busy() const { return m_jobs.running() + (m_draining ? 0 : m_jobs.queued()) + m_commands_in_flight > 0; }
  void touch();
  void await_idleness();
  bool is_lingering() const;
  void watch_directory();
  void beat();
  void await_signal();
  bool leave_if_deserted();
  void drain(std::string_view why);
  void hurry();
  void leave_if_drained();
  DaemonState state() const;

  const Options m_options;
  Supplies m_supplies;  // outlives all results: they give up what they claim
  const Deadline m_started = Clock::now();
  asio::io_context m_io{1};
  asio::signal_set m_signals;
  asio::local::stream_protocol::acceptor m_acceptor;
  asio::steady_timer m_idle_timer;
  asio::steady_timer m_drain_timer;
  asio::steady_timer m_watch_timer;
  asio::steady_timer m_heartbeat_timer;
  std::optional<ListeningSocket> m_socket;
  std::map<uint64_t, Peer> m_sessions;
  uint64_t m_next_session = 1;
  JobTable m_jobs;
  Counters m_counters;
  FlightRecorder m_events;
  UnkeptResults m_unkept;
  PublishedPrograms m_programs{m_options.config.cache_directory};
  size_t m_commands_in_flight = 0;
  size_t m_command_bytes = 0;  // of those
  bool m_draining = false;
  bool m_is_overdue = false;  // it has drained for as long as it may
  Deadline m_touched = m_started;

  std::unique_ptr<EntryStore> m_store;
  asio::thread_pool m_store_thread;
  std::unique_ptr<WorkerPool> m_pool;
  BackgroundTuner m_tuner;
};

Server::Server(Options options, std::unique_ptr<EntryStore> store)
    : m_impl(std::make_unique<Impl>(std::move(options), std::move(store))) {}
Server::~Server() = default;
Status Server::listen(UniqueFd handed_over) { return m_impl->listen(std::move(handed_over)); }
void Server::run() { m_impl->run(); }

Status Server::Impl::listen(UniqueFd handed_over) {
  const std::string& path = m_options.socket_path;
  KILN_ASSIGN_OR_RETURN(
      m_socket, handed_over ? ListeningSocket::adopt(std::move(handed_over), path) : ListeningSocket::bind(path));
  error_code failure;
  m_acceptor.assign(asio::local::stream_protocol(), m_socket->take().release(), failure);
  if (failure) return error(StatusCode::unavailable, "socket {}: {}", path, failure.message());
  return {};
}

void Server::Impl::run() {
  await_signal();
  asio::co_spawn(m_io, [this] { return accept_all(); }, asio::detached);
  touch();
  if (m_options.config.autotune_mode != "off") m_tuner.start();
  watch_directory();
  beat();
  m_io.run();
}

/// The first signal lets it finish what runs, the next one does not.
void Server::Impl::await_signal() {
  m_signals.async_wait([this](error_code failure, int signal) {
    if (failure) return;
    if (m_draining) {
      hurry();
    } else {
      drain(signal == SIGTERM ? "SIGTERM" : "SIGINT");
    }
    await_signal();
  });
}

/// Who waits for an answer hears every second that there will be one; while the daemon leaves, everybody does.
void Server::Impl::beat() {
  m_heartbeat_timer.expires_after(std::chrono::milliseconds(limits::k_daemon_heartbeat_ms));
  m_heartbeat_timer.async_wait([this](error_code failure) {
    if (failure) return;
    std::vector<std::shared_ptr<Session>> sessions;  // a copy: a session that cannot be written to closes
    for (const auto& [id, peer] : m_sessions) sessions.push_back(peer.session);
    for (const auto& session : sessions) session->heartbeat(m_draining);
    beat();
  });
}

// ---- connections

asio::awaitable<void> Server::Impl::accept_all() {
  while (m_acceptor.is_open()) {
    error_code failure;
    auto socket = co_await m_acceptor.async_accept(asio::redirect_error(asio::use_awaitable, failure));
    if (!m_acceptor.is_open()) co_return;
    if (failure) {
      // Out of descriptors: what is there goes on; waiting a little lets some close.
      spdlog::warn("accept: {}", failure.message());
      asio::steady_timer pause(m_io, std::chrono::milliseconds(50));
      co_await pause.async_wait(asio::redirect_error(asio::use_awaitable, failure));
      continue;
    }
    admit(UniqueFd(socket.release()));
  }
}

/// Who connects is known before a byte of theirs is read.
void Server::Impl::admit(UniqueFd socket) {
  fcntl(socket.get(), F_SETFD, FD_CLOEXEC);  // this Asio accepts without it
  ucred peer{};
  socklen_t size = sizeof peer;
  Status refused;
  if (getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0 || peer.uid != geteuid()) {
    refused = error(StatusCode::permission_denied, "this daemon serves user {}, not {}", geteuid(), peer.uid);
  } else if (m_sessions.size() >= limits::k_connections) {
    refused =
        error(StatusCode::resource_exhausted, "{} connections, at most {}", m_sessions.size(), limits::k_connections);
  }
  if (!refused.ok()) {
    m_counters.add(Counter::refused_peers);
    m_events.record("refused", "pid {} uid {}: {}", peer.pid, peer.uid, refused.message());
    [[maybe_unused]] const Status sent =
        send_all(socket.get(), protocol::encode(protocol::Failure{0, refused}), Clock::now());
    return;
  }
  m_counters.add(Counter::connections);
  const uint64_t id = m_next_session++;
  auto session = Session::start(m_io, std::move(socket), id, *this);
  m_sessions.emplace(id, Peer{std::move(session), peer.pid});
}

void Server::Impl::on_partial(uint64_t session) {
  size_t held = 0;
  for (const auto& [id, peer] : m_sessions) held += peer.session->bytes_held();
  if (held <= limits::k_partial_frame_bytes) return;
  const auto keep = m_sessions.at(session).session;
  keep->refuse(error(StatusCode::resource_exhausted, "{} bytes of frames are on their way, at most {}", held,
                     limits::k_partial_frame_bytes));
}

void Server::Impl::on_closed(uint64_t session, const Status& reason) {
  const auto found = m_sessions.find(session);
  if (found == m_sessions.end()) return;
  if (!reason.ok()) {
    m_counters.add(Counter::broken_peers);
    m_events.record("broken peer", "pid {}: {}", found->second.pid, reason.message());
    spdlog::warn("client {}: {}", found->second.pid, reason.message());
  }
  m_sessions.erase(found);
  m_jobs.leave(session);
}

void Server::Impl::answer(uint64_t session, const protocol::Message& message) {
  if (const auto found = m_sessions.find(session); found != m_sessions.end()) {
    const auto keep = found->second.session;  // answering may close it
    keep->answer(message);
  }
}

// ---- builds: ask → (queue) → worker → store → answer

void Server::Impl::on_build(uint64_t session, protocol::Build build) {
  touch();
  const auto peer = m_sessions.find(session);
  if (peer == m_sessions.end()) return;
  if (leave_if_deserted()) return;
  if (m_draining) return;  // the end hangs up, and that sends the client to the next daemon
  m_counters.add(Counter::builds_asked);
  if (answer_found(session, build)) return;
  m_tuner.interrupt();
  const uint32_t id = build.id;
  const Digest key = job_key(build);
  const bool joins = m_jobs.jobs().contains(key);
  const std::string title = title_of(build);
  if (const Status status =
          m_jobs.ask(std::move(build), {session, id}, static_cast<uint64_t>(peer->second.pid), Clock::now());
      !status.ok()) {
    m_counters.add(Counter::builds_refused);
    m_events.record("refused", "{} from pid {}: {}", title, peer->second.pid, status.message());
    return answer(session, protocol::Failure{id, status});
  }
  m_events.record(joins ? "joined" : "queued", "{} from pid {}", title, peer->second.pid);
  if (joins) m_counters.add(Counter::builds_joined);
  for (const uint64_t number : m_jobs.in_the_way()) m_pool->cancel(number);
  start_jobs();
}

/// What was published between the client's look and its question is there for it now. One that asks again names no keys.
bool Server::Impl::answer_found(uint64_t session, const protocol::Build& build) {
  if (build.keys.empty() || build.keys.size() != build.targets.size()) return false;
  if (build.again || build.unkept || build.afresh) return false;
  auto heads = m_programs.find(build.keys, build.tune);
  if (!heads) return false;
  m_counters.add(Counter::builds_found);
  m_events.record("found", "{}", title_of(build));
  protocol::Built built;
  built.id = build.id;
  built.heads = std::move(*heads);
  answer(session, built);
  return true;
}

void Server::Impl::start_jobs() {
  while (!m_draining && m_jobs.queued() > 0 && m_pool->has_room_beside(m_jobs.running())) {
    const JobTable::Job* job = m_jobs.next();
    if (job == nullptr) return;
    if (auto unkept = m_unkept.find(job->key)) {
      publish(job->key, std::move(unkept));  // there may be room by now
    } else {
      submit(*job);
    }
  }
}

void Server::Impl::submit(const JobTable::Job& job) {
  m_events.record("started", "{}: {} bytes of graph, {} targets", title_of(job.build), job.build.graph.size(),
                  job.build.targets.size());
  WorkerPool::Keep keep = [this](const std::shared_ptr<const BuildResult>& found) {
    asio::post(m_store_thread, [this, found] { m_supplies.keep(*found, *m_store); });
  };
  if (job.build.unkept || job.build.afresh) keep = nullptr;
  // The callbacks come on the pool's threads; only what is posted touches the server.
  const uint64_t number = m_pool->submit(
      request_of(job.build, m_options.config.cache_directory), job.build.priority,
      [this, key = job.key](std::string_view stage, uint64_t done, uint64_t total, std::string_view item) {
        asio::post(m_io,
                   [this, key, progress = protocol::Progress{0, std::string(stage), std::string(item), done, total}] {
                     on_progress(key, progress);
                   });
      },
      std::move(keep),
      [this, key = job.key](JobOutcome outcome) {
        asio::post(m_io, [this, key, outcome = std::move(outcome)]() mutable { on_built(key, std::move(outcome)); });
      });
  m_jobs.note_build(job.key, number);
}

void Server::Impl::on_progress(const Digest& key, const protocol::Progress& progress) {
  m_jobs.note_progress(key, progress);
  const std::vector<Asker> askers = m_jobs.askers(key);  // a copy: answering may close sessions
  for (const Asker& asker : askers) {
    protocol::Progress numbered = progress;
    numbered.id = asker.request;
    answer(asker.session, numbered);
  }
}

void Server::Impl::on_built(const Digest& key, JobOutcome outcome) {
  if (leave_if_deserted()) return;
  touch();
  if (outcome.result.status().code() == StatusCode::cancelled) return put_back(key);
  if (outcome.signal != 0) m_counters.add(Counter::workers_died);
  if (!outcome.result.ok()) {
    const Status status = outcome.result.status();
    if (outcome.poisonous) {
      m_counters.add(Counter::keys_quarantined);
      m_events.record("quarantined", "{}: {}", m_jobs.title(key), status.message());
      m_jobs.quarantine(m_jobs.jobs().at(key).build, status, deadline_in(m_options.config.worker_quarantine_ms));
    }
    return fail_job(key, status, outcome.signal);
  }
  m_counters.add(Counter::compilations, outcome.result->compilations);
  m_counters.add(Counter::kernels_supplied, outcome.supply->supplied());
  if (outcome.supply->has_programs()) m_counters.add(Counter::builds_supplied);
  publish(key, result_of(std::move(outcome)));
}

/// It made way for a build that somebody waits for.
void Server::Impl::put_back(const Digest& key) {
  m_events.record("made way", "{}", m_jobs.title(key));
  m_jobs.put_back(key);
  start_jobs();
  leave_if_drained();
}

void Server::Impl::publish(const Digest& key, std::shared_ptr<BuildResult> result) {
  const protocol::Build& build = m_jobs.jobs().at(key).build;
  if (build.unkept) return on_published(Digest(key), std::move(result), {});
  asio::post(m_store_thread, [this, key, result = std::move(result), graph = build.graph, replaces = build.afresh] {
    const Status status = guarded([&] { return m_store->publish(*result, graph, replaces); });
    const auto announcement = m_supplies.announce_offer();  // before anybody hears of it, and tells the daemon to leave
    asio::post(m_io, [this, key, result, status] { on_published(key, result, status); });
    if (status.ok()) m_supplies.offer(*result, *m_store);
  });
}

/// The heads are in the index: now, and not earlier, the askers are told. What the disk has no room for they are given.
void Server::Impl::on_published(const Digest& key, std::shared_ptr<BuildResult> result, const Status& status) {
  if (!status.ok() && leave_if_deserted()) return;
  const bool is_full = status.code() == StatusCode::resource_exhausted;
  if (!status.ok() && !is_full) return fail_job(key, status.with_context("publish"), 0);
  const bool is_unkept = m_jobs.jobs().at(key).build.unkept;
  const std::string title = m_jobs.title(key);
  protocol::Built built = answer_of(*result, /*carries_them=*/is_full || is_unkept);
  if (is_full) {
    m_counters.add(Counter::builds_not_kept);
    spdlog::warn("build {} is not kept: {}", title, status.message());
    m_events.record("not kept", "{}: {}", title, status.message());
    built.not_kept = status.message();
  } else if (!is_unkept) {
    m_counters.add(Counter::builds_done);
    m_counters.add(Counter::artifacts_published, result->artifacts.size());
    const auto is_not_judged = [](const BuiltHead& head) { return !head.not_judged.empty(); };
    m_counters.add(Counter::programs_not_judged,
                   static_cast<uint64_t>(std::ranges::count_if(result->heads, is_not_judged)));
    m_tuner.look_again();
    m_events.record("published", "{}: {} artifacts, {} heads, {} compilations", title, result->artifacts.size(),
                    result->heads.size(), result->compilations);
  }
  spdlog::debug("build {}: {}", title, result->report);
  for (const Asker& asker : m_jobs.finish(key)) {
    built.id = asker.request;
    built.joined = asker.joined;
    built.compilations = asker.joined ? 0 : result->compilations;
    built.report = asker.joined ? "" : result->report;
    answer(asker.session, built);
  }
  result->compilations = 0;  // done, and told
  m_unkept.put(key, is_full ? std::move(result) : nullptr);
  start_jobs();
  leave_if_drained();
}

void Server::Impl::fail_job(const Digest& key, const Status& status, uint32_t signal) {
  if (m_draining && status.code() == StatusCode::unavailable) {
    m_jobs.finish(key);  // killed as the daemon leaves: the end hangs up on who asked, and the next daemon builds it
    return leave_if_drained();
  }
  m_counters.add(Counter::builds_failed);
  m_events.record("failed", "{}: {}", m_jobs.title(key), status.to_string());
  spdlog::warn("build {}: {}", m_jobs.title(key), status.to_string());
  for (const Asker& asker : m_jobs.finish(key)) answer(asker.session, protocol::Failure{asker.request, status, signal});
  start_jobs();
  leave_if_drained();
}

// ---- commands

void Server::Impl::on_command(uint64_t session, protocol::Command command) {
  if (leave_if_deserted()) return;
  touch();
  m_counters.add(Counter::commands);
  const uint32_t id = command.id;
  switch (command.verb) {
    case Verb::status:
      return answer_command(session, id, status_json(state()));
    case Verb::stats:
      return answer_command(session, id, counters_json(m_counters));
    case Verb::events:
      return answer_command(session, id, events_json(m_events));
    case Verb::shutdown:
      answer_command(session, id, std::string("{}"));
      return drain("asked to");
    default:
      break;
  }
  if (m_draining) return;  // as for a build
  if (command.verb == Verb::clear) {
    m_jobs.forgive_all();
    m_unkept.clear();
    m_tuner.look_again();
  }
  const size_t bytes = command.data.size();
  if (m_command_bytes > 0 && m_command_bytes + bytes > limits::k_held_request_bytes) {
    return answer_command(session, id,
                          error(StatusCode::resource_exhausted, "{} bytes beside {} that wait already, at most {}",
                                bytes, m_command_bytes, limits::k_held_request_bytes));
  }
  ++m_commands_in_flight;
  m_command_bytes += bytes;
  asio::post(m_store_thread, [this, session, id, bytes, command = std::move(command)] {
    auto json = guarded([&] { return run_on_captures(command, *m_store, m_supplies); });
    asio::post(m_io, [this, session, id, bytes, json = std::move(json)] {
      --m_commands_in_flight;
      m_command_bytes -= bytes;
      answer_command(session, id, json);
      leave_if_drained();
    });
  });
}

void Server::Impl::answer_command(uint64_t session, uint32_t id, const Expected<std::string>& json) {
  if (json.ok()) return answer(session, protocol::Answer{id, *json});
  answer(session, protocol::Failure{id, json.status()});
}

DaemonState Server::Impl::state() const {
  return {.cache_directory = m_options.config.cache_directory,
          .socket_path = m_options.socket_path,
          .uptime_ms = std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - m_started).count(),
          .draining = m_draining,
          .connections = m_sessions.size(),
          .workers = m_pool->size(),
          .room = m_pool->room(),
          .jobs = m_jobs,
          .tuning = m_tuner.progress(),
          .has_untuned = m_tuner.has_work(),
          .counters = m_counters,
          .fleet = m_supplies.fleet_counts()};
}

// ---- leaving

/// Something was asked or done: the idle time starts again.
void Server::Impl::touch() {
  m_touched = Clock::now();
  await_idleness();
}

void Server::Impl::await_idleness() {
  if (m_draining || m_options.config.daemon_idle_exit_ms == 0) return;
  m_idle_timer.expires_after(std::chrono::milliseconds(m_options.config.daemon_idle_exit_ms));
  m_idle_timer.async_wait([this](error_code failure) {
    if (failure) return;
    if (busy() || is_lingering()) return await_idleness();
    drain("idle");
  });
}

/// What may still race waits for a quiet machine, and the daemon with it, for a while.
bool Server::Impl::is_lingering() const {
  const bool has_work = m_tuner.has_work() || m_tuner.is_running();
  return has_work && Clock::now() - m_touched < std::chrono::milliseconds(limits::k_tuning_linger_ms);
}

void Server::Impl::watch_directory() {
  if (leave_if_deserted()) return;
  m_watch_timer.expires_after(k_watch_interval);
  m_watch_timer.async_wait([this](error_code failure) {
    if (!failure) watch_directory();
  });
}

/// Somebody removed or replaced the cache directory: nothing that is published here reaches anybody. The process ends
/// at once, which hangs up on every client and so sends it to the next daemon.
bool Server::Impl::leave_if_deserted() {
  if (m_options.is_in_force()) return false;
  spdlog::warn("leaving at once: {} was removed or replaced", m_options.config.cache_directory);
  m_socket->remove_name();
  m_io.stop();
  return true;
}

/// From here on nothing new is begun. Who asks for something, and who waited in the queue, hears heartbeats until the
/// end hangs up, and then goes to the next daemon: that can have the cache from then on, and not earlier.
void Server::Impl::drain(std::string_view why) {
  if (m_draining) return;
  m_draining = true;
  spdlog::info("leaving: {}; {} builds run, {} wait", why, m_jobs.running(), m_jobs.queued());
  m_events.record("leaving", "{}", why);
  m_idle_timer.cancel();
  m_tuner.stop();
  m_drain_timer.expires_after(std::chrono::milliseconds(m_options.config.daemon_drain_timeout_ms));
  m_drain_timer.async_wait([this](error_code failure) {
    if (failure) return;
    spdlog::warn("{} builds did not finish in {} ms: killed", m_jobs.running(),
                 m_options.config.daemon_drain_timeout_ms);
    hurry();
  });
  leave_if_drained();
}

/// Ends what the daemon would wait for.
void Server::Impl::hurry() {
  m_is_overdue = true;
  m_pool->kill_all();
  leave_if_drained();
}

void Server::Impl::leave_if_drained() {
  if (!m_draining || busy()) return;
  if (m_supplies.is_offering() && !m_is_overdue) {
    m_watch_timer.expires_after(k_offering_glance);
    return m_watch_timer.async_wait([this](error_code failure) {
      if (!failure) leave_if_drained();
    });
  }
  m_drain_timer.cancel();
  m_signals.cancel();
  m_socket->remove_name();
  error_code ignored;
  m_acceptor.close(ignored);
  // After what is queued: answers just given are still written.
  asio::post(m_io, [this] {
    auto linger = std::make_shared<asio::steady_timer>(m_io, std::chrono::milliseconds(20));
    linger->async_wait([this, linger](error_code) { m_io.stop(); });
  });
}

}  // namespace kiln
