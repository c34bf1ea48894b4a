#pragma once

#include <cstddef>
#include <cstdint>

/// Every bound of the system, in one place, with its reason. Hitting one is a typed error, never a crash. Sizes in
/// bytes, times in milliseconds.
namespace kiln::limits {

// Graphs. GPT-2 with 48 layers in training has about 5,000 nodes; 20x that is still parsed in milliseconds.
inline constexpr size_t k_graph_nodes = 100'000;
inline constexpr size_t k_graph_values = 400'000;
inline constexpr size_t k_node_operands = 4'096;  // a cat or stack over many tensors
inline constexpr size_t k_tensor_rank = 16;
inline constexpr int64_t k_tensor_elements = int64_t{1} << 40;
inline constexpr size_t k_symbols = 1'024;
inline constexpr size_t k_guards = 4'096;
inline constexpr size_t k_name_bytes = 256;
inline constexpr size_t k_text_bytes = size_t{64} << 20;

// Kernels.
inline constexpr size_t k_kernel_buffers = 128;
inline constexpr size_t k_launch_extents = 64;     // beside the buffers they fit a device's argument of 4 KiB
inline constexpr size_t k_many_sizes_symbols = 4;  // of a program for many sizes
inline constexpr size_t k_many_sizes_graphs = 8;   // of one graph, by which of its symbols are the same
inline constexpr uint64_t k_many_sizes_scratch_bytes = uint64_t{256} << 20;  // of the same, at the largest sizes
inline constexpr size_t k_code_bytes = size_t{16} << 20;
inline constexpr size_t k_task_workspace_bytes = size_t{256} << 20;
inline constexpr uint64_t k_launch_workspace_bytes = uint64_t{2} << 30;  // of a device, beside a model that trains

// The wire.
inline constexpr size_t k_frame_bytes = size_t{256} << 20;  // a graph with its constants
inline constexpr size_t k_greeting_bytes = 4'096;           // before the greeting nobody may make us hold more
inline constexpr size_t k_connections = 1'024;              // 8 ranks x 16 jobs on a big host, times 8
inline constexpr size_t k_connection_requests = 64;         // in flight; a client that has more waits for answers
inline constexpr size_t k_connection_output_bytes = size_t{64} << 20;  // a reader slower than this is dropped
inline constexpr size_t k_queued_jobs = 4'096;                         // builds waiting for a worker
inline constexpr size_t k_request_targets = 16;
// What all clients together may make the daemon hold: graphs that wait or are built, captures on their way to the disk,
// frames that are not whole yet. Room for one frame of the largest size beside others.
inline constexpr size_t k_held_request_bytes = size_t{256} << 20;
inline constexpr size_t k_partial_frame_bytes = size_t{512} << 20;
inline constexpr size_t k_unkept_bytes = size_t{64} << 20;  // results that the disk had no room for
inline constexpr uint64_t k_greeting_timeout_ms = 5'000;    // a peer that connects and says nothing
inline constexpr uint64_t k_frame_timeout_ms = 30'000;      // a peer that begins a frame and does not end it

// The service.
inline constexpr size_t k_config_bytes = size_t{1} << 20;
inline constexpr size_t k_flight_events = 1'024;  // the flight recorder's ring
inline constexpr size_t k_quarantined_keys = 4'096;
inline constexpr size_t k_job_retries = 1;  // a crash may be the machine's fault once

// How long a client waits for its daemon. One that lives says so every second, whatever it does; a client that could not
// have one tells all who ask in the next half minute so at once, and twice as long after each failure.
inline constexpr uint64_t k_daemon_heartbeat_ms = 1'000;
inline constexpr uint64_t k_daemon_silence_ms = 10'000;
inline constexpr uint64_t k_daemon_backoff_ms = 30'000;
inline constexpr uint64_t k_races_wait_ms = 3'600'000;  // for a program whose kernels race first, where nobody says
inline constexpr uint64_t k_daemon_backoff_max_ms = 600'000;

// What ranks of one job agreed upon: 16,384 programs of 64 bytes, kept for so long after the last one.
inline constexpr size_t k_job_heads_bytes = size_t{1} << 20;
inline constexpr int k_job_heads_days = 30;

// Clients. Frameworks have a few dozen streams a device; each costs a word of its memory.
inline constexpr size_t k_client_streams = 256;
// Of one program, over all the addresses that it is remembered with; each takes about a kilobyte on either side.
inline constexpr size_t k_recorded_launches = 4'096;

// Tuning. A build in the background ends when so much time has passed since its first race; what ends it earlier costs
// one race at most. A kernel's candidates, their compilation included, take a few seconds.
inline constexpr uint64_t k_background_tuning_ms = 10'000;
inline constexpr uint32_t k_machine_lock_ms = 2'000;        // a sample takes a few hundredths of a second
inline constexpr uint64_t k_tuning_linger_ms = 86'400'000;  // a machine that is busy for longer is not waited for

// Candidates.
inline constexpr size_t k_device_runners = 4;  // each has a context there, which takes memory from a model that trains
inline constexpr size_t k_candidate_repetitions = 256;
inline constexpr size_t k_timed_launches = 64;  // of a plan, that another one does not have

// The verdict over a program keeps outputs, scratch and what launches made until its last reader, beside a model that
// trains: a larger program is published on its kernels' verdicts alone, and `kiln show` says so.
inline constexpr uint64_t k_program_verdict_bytes = uint64_t{6} << 30;

// The cache.
inline constexpr size_t k_artifact_bytes = size_t{256} << 20;  // 16x the largest code; one RocksDB value
inline constexpr size_t k_batch_artifacts = 65'536;            // a 48-layer program names a few hundred
inline constexpr size_t k_batch_heads = 65'536;
inline constexpr size_t k_canonical_key_bytes = size_t{64} << 20;
inline constexpr size_t k_kept_content_bytes = size_t{16}
                                               << 20;  // a graph kept beside its program, to explain and tune
inline constexpr size_t k_capture_generations = 2;     // of one key: the newest, and one to fall back to
inline constexpr size_t k_provenance_bytes = size_t{64} << 10;

// Packs. A manifest is read whole before its signature is known to hold; this one names some 300,000 artifacts.
inline constexpr size_t k_pack_manifest_bytes = size_t{64} << 20;
inline constexpr size_t k_mounted_packs = 256;

// Exports. Each form has programs of its own, all share the weights; 4 TiB of these are 4 Mi pieces to check.
inline constexpr size_t k_export_forms = 64;
inline constexpr uint64_t k_export_weights_bytes = uint64_t{4} << 40;
// A fleet's store. One that fails is left alone for a second, twice as long after each further failure; what waits to be
// written has the room of a few large models' programs.
inline constexpr uint64_t k_fleet_rest_ms = 1'000;
inline constexpr uint64_t k_fleet_rest_max_ms = 60'000;
inline constexpr uint64_t k_fleet_write_ms = 1'000;  // one entry; the next daemon waits for longer than that
inline constexpr size_t k_fleet_queue_bytes = size_t{64} << 20;
inline constexpr size_t k_fleet_value_bytes = k_fleet_queue_bytes;
inline constexpr size_t k_fleet_questions = 64;
inline constexpr size_t k_fleet_known_keys = 65'536;
// Of code that nobody trusted signed: a build that had so many rejected tries no more of it.
inline constexpr size_t k_rejected_candidates = 3;
// How long a host has what it makes for itself unless it says so again, and how long others wait for it.
inline constexpr uint64_t k_fleet_lease_ms = 5'000;
inline constexpr uint64_t k_fleet_lease_renewal_ms = 1'500;
inline constexpr uint64_t k_fleet_lease_wait_ms = 20'000;

}  // namespace kiln::limits
