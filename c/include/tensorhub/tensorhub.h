/// \file tensorhub.h
/// TensorHub for C, and for languages that call C: a stable interface over the compiled library.
///
///     tensorhub_publisher* trainer = NULL;
///     tensorhub_worker_options who = {.struct_bytes = sizeof who};
///     who.server = "tcp://10.0.0.1:5570", who.model = "policy", who.replica = "trainer-0";
///     if (tensorhub_publisher_create(&who, &trainer, &error) != TENSORHUB_OK) ...
///
/// - Handles are opaque. `create` and `start` make one, `free` and `stop` end it, when no other call of that
///   handle runs. These two and `interrupt` accept NULL.
/// - Structures begin with their size, which the caller sets. A zero field means the default. A program that
///   was compiled against an older header goes on working: what its structures lack is zero. So does one with
///   a newer header, until it sets a field that the library does not know: that is refused, with
///   INVALID_ARGUMENT, because a security option would be off silently. What the library does not know of a
///   report it sets to zero.
/// - Texts and dimensions that are passed to a function are copied before it returns.
/// - Every function that can fail returns a status, and through its last argument, if that is not NULL, an
///   error that names what it is about and says what to do. The caller frees it with `tensorhub_error_free`.
///   `*error`, and the handle that a function makes, are set to NULL first. Texts that a function returns
///   belong to their handle.
/// - A time-out is in milliseconds; TENSORHUB_DEFAULT_TIMEOUT is that of the C++ call of the same name. No
///   call waits longer, but for memory whose readers' keys have to be revoked (transports/README.md).
/// - Thread safety, and what a call promises: as the header of the C++ class of the same name says
///   (publisher, subscriber, seeder, server_client). A child process that was forked may not use its
///   parent's handles.
/// - The only callback is `log`, which gets one line at a time in a thread of the library's. It must not call
///   or free its object, and is called until the object's `free` or `stop` has returned.

#ifndef TENSORHUB_TENSORHUB_H
#define TENSORHUB_TENSORHUB_H

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define TENSORHUB_C_API __attribute__((visibility("default")))
#else
#define TENSORHUB_C_API
#endif

#if defined(__cplusplus)
extern "C" {
#endif

/// Grows when a program that was compiled against an earlier header no longer works.
#define TENSORHUB_ABI_VERSION 1
/// That of the library that is loaded.
TENSORHUB_C_API uint32_t tensorhub_abi_version(void);
/// "0.1.0"
TENSORHUB_C_API const char* tensorhub_version(void);

#define TENSORHUB_DEFAULT_TIMEOUT ((int64_t)-1)

// ---- errors

/// The numbers are those of tensorhub/error.hpp, which says what each means.
typedef enum tensorhub_status {
  TENSORHUB_OK = 0,
  TENSORHUB_INVALID_ARGUMENT = 1,
  TENSORHUB_LIMIT_EXCEEDED = 2,
  TENSORHUB_LAYOUT_MISMATCH = 3,
  TENSORHUB_POLICY_MISMATCH = 4,
  TENSORHUB_PROTOCOL_MISMATCH = 5,
  TENSORHUB_VERSION_CONFLICT = 6,
  TENSORHUB_NOT_FOUND = 7,
  TENSORHUB_UNAVAILABLE = 8,
  TENSORHUB_TIMED_OUT = 9,
  TENSORHUB_BUSY = 10,
  TENSORHUB_TORN = 11,
  TENSORHUB_GROUP_FAILED = 12,
  TENSORHUB_CONTRACT_BROKEN = 13,
  TENSORHUB_CORRUPT = 14,
  TENSORHUB_SOURCE_LOST = 15,
  TENSORHUB_DISCONNECTED = 16,
  TENSORHUB_REPLACED = 17,
  TENSORHUB_CANCELLED = 18,
  TENSORHUB_TRANSPORT_FAILED = 19,
  TENSORHUB_SYSTEM_FAILED = 20,
  TENSORHUB_REFUSED = 21,
  TENSORHUB_STILL_PUBLISHED = 22
} tensorhub_status;

/// "timed_out"; never NULL.
TENSORHUB_C_API const char* tensorhub_status_name(tensorhub_status status);
/// Not 0: the same call may succeed later, although the caller changes nothing.
TENSORHUB_C_API int32_t tensorhub_status_retryable(tensorhub_status status);

typedef struct tensorhub_error tensorhub_error;
TENSORHUB_C_API tensorhub_status tensorhub_error_status(const tensorhub_error* error);
/// What is wrong and what to do, with the model, replica, shard, version, peer and chunk that it is about.
TENSORHUB_C_API const char* tensorhub_error_text(const tensorhub_error* error);
TENSORHUB_C_API void tensorhub_error_free(tensorhub_error* error);

// ---- the reference server

/// Its options. Keys are CURVE keys as tensorhub/security.hpp makes them: with `secret_key`, only clients
/// whose public keys are in the list may connect. An entry is a key, or a line of an allow-list, with the
/// name and the rights of its owner: "KEY rollouts replicas=rollout-* may=read,serve"
/// (tensorhub/key_files.hpp).
typedef struct tensorhub_server_options {
  size_t struct_bytes;
  const char* address;         ///< "tcp://host:port"; NULL: any free port of the loopback interface
  uint64_t worker_timeout_ms;  ///< silence after which a worker is declared dead; 0: 5000
  const char* public_key;
  const char* secret_key;
  const char* const* allowed_keys;
  size_t allowed_key_count;
  void (*log)(void* context, int32_t level, const char* text);  ///< 0: error, 1: warning, 2: info, 3: debug
  void* log_context;
} tensorhub_server_options;

typedef struct tensorhub_server tensorhub_server;
TENSORHUB_C_API tensorhub_status tensorhub_server_start(const tensorhub_server_options* options,
                                                        tensorhub_server** server, tensorhub_error** error);
/// What workers connect to, with the port that was bound.
TENSORHUB_C_API const char* tensorhub_server_address(const tensorhub_server* server);
/// Admits the clients with the key of this line from now on, or changes what they may do; a line is as an
/// entry of `allowed_keys`. INVALID_ARGUMENT: the server was started without `secret_key`.
TENSORHUB_C_API tensorhub_status tensorhub_server_allow(tensorhub_server* server, const char* line,
                                                        tensorhub_error** error);
/// Admits the clients with this public key no more, and drops what they send on their connections.
/// `was_allowed` may be NULL.
TENSORHUB_C_API tensorhub_status tensorhub_server_revoke(tensorhub_server* server, const char* key,
                                                         int32_t* was_allowed, tensorhub_error** error);
TENSORHUB_C_API void tensorhub_server_stop(tensorhub_server* server);

// ---- workers

typedef enum tensorhub_dtype {
  TENSORHUB_U8 = 0,
  TENSORHUB_I8 = 1,
  TENSORHUB_I16 = 2,
  TENSORHUB_U16 = 3,
  TENSORHUB_F16 = 4,
  TENSORHUB_BF16 = 5,
  TENSORHUB_I32 = 6,
  TENSORHUB_U32 = 7,
  TENSORHUB_F32 = 8,
  TENSORHUB_I64 = 9,
  TENSORHUB_U64 = 10,
  TENSORHUB_F64 = 11,
  TENSORHUB_BOOLEAN = 12,
  TENSORHUB_F8_E4M3 = 13,
  TENSORHUB_F8_E5M2 = 14,
  TENSORHUB_F8_E8M0 = 15,
  TENSORHUB_F8_E4M3FNUZ = 16,
  TENSORHUB_F8_E5M2FNUZ = 17,
  TENSORHUB_F4_E2M1_X2 = 18, /* two values in a byte; dimensions count bytes */
  TENSORHUB_C64 = 19,
  TENSORHUB_C128 = 20
} tensorhub_dtype;

/// What a worker is told (`worker_options` of tensorhub/options.hpp). Only `server`, `model` and `replica`
/// have no default.
typedef struct tensorhub_worker_options {
  size_t struct_bytes;
  const char* server;  ///< "tcp://host:port", or several with commas and bars between
  const char* model;
  const char* replica;
  uint32_t shard_index;
  uint32_t shard_count;     ///< 0: one shard
  const char* transport;    ///< "auto" or NULL: same_host, else tcp; "tcp"; "same_host"
  const char* listen_host;  ///< of tcp; NULL: loopback, or the interface towards a server on another machine
  uint32_t listen_port;     ///< of tcp; 0: any free one
  const char* advertised_host;  ///< of tcp. "same_host" refuses these three
  const char* datacenter;
  const char* rack;
  const char* host;
  uint64_t chunk_bytes;  ///< the same for all workers of a model
  uint64_t lanes;
  uint64_t offload_limit_bytes;  ///< 0: no limit
  int32_t spot;                  ///< not 0: may vanish, so it is never relied upon
  uint64_t join_timeout_ms;
  const char* server_key;  ///< with `public_key` and `secret_key`: as tensorhub_server_options
  const char* public_key;
  const char* secret_key;
  void (*log)(void* context, int32_t level, const char* text);
  void* log_context;
  /// With keys: digests that a source could forge (xxh3_128 instead of blake3_128), as of C++ workers that
  /// say `trust_sources`.
  int32_t trust_sources;
  /// Of same_host, not 0: this host has several tenants, so readers get copies of this worker's memory and
  /// nothing of it that they could keep (`same_host_options::for_tenants`). The process makes no core dumps
  /// any more. "tcp" refuses it.
  int32_t for_tenants;
  /// Not 0: `update` and `stage` take only versions that this worker's datacenter has already, as with
  /// `prefer_local` in C++; for rollouts beside a seeder. Publishers and seeders refuse it.
  int32_t prefer_local;
  uint32_t reserved;  ///< 0
} tensorhub_worker_options;

/// One tensor, row-major and without gaps. All workers of a shard add the same ones in the same order.
typedef struct tensorhub_tensor {
  size_t struct_bytes;
  const char* name;
  void* data;  ///< the caller's, for as long as the worker lives; NULL where the memory is the library's
  const uint64_t* dimensions;
  size_t dimension_count;
  tensorhub_dtype type;
  uint32_t reserved;  ///< 0
} tensorhub_tensor;

/// What a publish, an unpublish or a leave did. What does not apply is zero.
typedef struct tensorhub_publish_report {
  size_t struct_bytes;
  uint64_t version;
  uint64_t bytes;
  double seconds;
  uint32_t readers_finished;
  uint32_t readers_moved;
  uint32_t readers_cut_off;
  int32_t forced;   ///< the deadline came: the remaining readers were cut off
  int32_t lost;     ///< what is gone was the last reliable copy of a retained version
  int32_t changed;  ///< bytes have changed since publish, which readers have noticed (the log says which)
} tensorhub_publish_report;

typedef struct tensorhub_publisher tensorhub_publisher;
TENSORHUB_C_API tensorhub_status tensorhub_publisher_create(const tensorhub_worker_options* options,
                                                            tensorhub_publisher** publisher,
                                                            tensorhub_error** error);
TENSORHUB_C_API tensorhub_status tensorhub_publisher_add(tensorhub_publisher* publisher,
                                                         const tensorhub_tensor* tensor,
                                                         tensorhub_error** error);
/// In place: the bytes must not change until `unpublish` has returned. `report` may be NULL.
TENSORHUB_C_API tensorhub_status tensorhub_publisher_publish(tensorhub_publisher* publisher, uint64_t version,
                                                             int64_t timeout_ms,
                                                             tensorhub_publish_report* report,
                                                             tensorhub_error** error);
/// The same where only the tensors of these names have changed since this publisher last published: the
/// others keep their digests. `names` may be NULL if `name_count` is zero. A tensor that has changed and was
/// left out stays as it was at readers that have its old bytes; CONTRACT_BROKEN if a sample of what was left
/// out shows that it has changed.
TENSORHUB_C_API tensorhub_status tensorhub_publisher_publish_changed(
    tensorhub_publisher* publisher, uint64_t version, const char* const* names, size_t name_count,
    int64_t timeout_ms, tensorhub_publish_report* report, tensorhub_error** error);
/// A copy: the bytes may change when this has returned. Number snapshots one after the other: only then do
/// two memories take turns, and no snapshot waits for the readers of the one before.
TENSORHUB_C_API tensorhub_status tensorhub_publisher_publish_snapshot(tensorhub_publisher* publisher,
                                                                      uint64_t version, int64_t timeout_ms,
                                                                      tensorhub_publish_report* report,
                                                                      tensorhub_error** error);
TENSORHUB_C_API tensorhub_status tensorhub_publisher_unpublish(tensorhub_publisher* publisher,
                                                               int64_t timeout_ms,
                                                               tensorhub_publish_report* report,
                                                               tensorhub_error** error);
/// Back to a checkpoint: versions above this one are withdrawn wherever they are held, and their numbers may
/// be published again. STILL_PUBLISHED: the publisher shows such a version itself, call unpublish first.
TENSORHUB_C_API tensorhub_status tensorhub_publisher_roll_back_to(tensorhub_publisher* publisher,
                                                                  uint64_t version, int64_t timeout_ms,
                                                                  tensorhub_error** error);
/// Of this model the latest `versions` are not to be lost.
TENSORHUB_C_API tensorhub_status tensorhub_publisher_retain(tensorhub_publisher* publisher, uint32_t versions,
                                                            int64_t timeout_ms, tensorhub_error** error);
TENSORHUB_C_API tensorhub_status tensorhub_publisher_pin(tensorhub_publisher* publisher, uint64_t version,
                                                         int64_t timeout_ms, tensorhub_error** error);
TENSORHUB_C_API tensorhub_status tensorhub_publisher_release(tensorhub_publisher* publisher, uint64_t version,
                                                             int64_t timeout_ms, tensorhub_error** error);
/// Zero: none.
TENSORHUB_C_API uint64_t tensorhub_publisher_held_version(tensorhub_publisher* publisher);
TENSORHUB_C_API tensorhub_status tensorhub_publisher_leave(tensorhub_publisher* publisher, int64_t grace_ms,
                                                           tensorhub_publish_report* report,
                                                           tensorhub_error** error);
/// The calls that run in other threads end soon, `unpublish` and `leave` as at their deadline, the others
/// with CANCELLED. A call that has not begun to wait yet is not noticed: repeat this until it has ended.
TENSORHUB_C_API void tensorhub_publisher_interrupt(tensorhub_publisher* publisher);
/// No other call may run. Readers that are left are cut off, and retained versions are not handed over: call
/// `leave` first.
TENSORHUB_C_API void tensorhub_publisher_free(tensorhub_publisher* publisher);

/// Where a subscriber's versions arrive.
typedef enum tensorhub_mode {
  TENSORHUB_IN_PLACE = 0,         ///< in the caller's tensors: `update`
  TENSORHUB_STAGED = 1,           ///< beside them: `stage`, then `install` copies
  TENSORHUB_DOUBLE_BUFFERED = 2,  ///< in one of two memories of the library's: `stage`, then `install` flips
} tensorhub_mode;

typedef enum tensorhub_selector {
  TENSORHUB_LATEST = 0,    ///< what is there now; the number is not used
  TENSORHUB_EXACTLY = 1,   ///< this version
  TENSORHUB_AT_LEAST = 2,  ///< this version or a later one
} tensorhub_selector;

typedef struct tensorhub_update_report {
  size_t struct_bytes;
  uint64_t version;
  int32_t kept;    ///< was held already: nothing was read
  int32_t lost;    ///< what was overwritten was the last reliable copy of a retained version
  uint64_t bytes;  ///< read, or (install) copied
  double seconds;
  double wait_seconds;  ///< until the transfer began, or (install) until the live version's readers had ended
  double pull_seconds;  ///< the transfer, or (install) the copy
  uint64_t unchanged_bytes;  ///< of the version, were here already, and read from nobody
} tensorhub_update_report;

typedef struct tensorhub_subscriber tensorhub_subscriber;
TENSORHUB_C_API tensorhub_status tensorhub_subscriber_create(const tensorhub_worker_options* options,
                                                             tensorhub_mode mode,
                                                             tensorhub_subscriber** subscriber,
                                                             tensorhub_error** error);
TENSORHUB_C_API tensorhub_status tensorhub_subscriber_add(tensorhub_subscriber* subscriber,
                                                          const tensorhub_tensor* tensor,
                                                          tensorhub_error** error);
/// Into the tensors, in place; in the other modes `stage` and then `install`, if the version is not live.
TENSORHUB_C_API tensorhub_status tensorhub_subscriber_update(tensorhub_subscriber* subscriber,
                                                             tensorhub_selector selector, uint64_t version,
                                                             int64_t timeout_ms,
                                                             tensorhub_update_report* report,
                                                             tensorhub_error** error);
/// Beside what is live. Not in mode TENSORHUB_IN_PLACE; neither is `install`.
TENSORHUB_C_API tensorhub_status tensorhub_subscriber_stage(tensorhub_subscriber* subscriber,
                                                            tensorhub_selector selector, uint64_t version,
                                                            int64_t timeout_ms,
                                                            tensorhub_update_report* report,
                                                            tensorhub_error** error);
TENSORHUB_C_API tensorhub_status tensorhub_subscriber_install(tensorhub_subscriber* subscriber,
                                                              int64_t timeout_ms,
                                                              tensorhub_update_report* report,
                                                              tensorhub_error** error);
/// Where a tensor's live bytes are, until the `stage` after the next `install`. Only in mode
/// TENSORHUB_DOUBLE_BUFFERED.
TENSORHUB_C_API tensorhub_status tensorhub_subscriber_tensor(tensorhub_subscriber* subscriber,
                                                             const char* name, const void** data,
                                                             tensorhub_error** error);
/// The newest version that the server has told of, if it is newer than what is live; else zero. Never waits.
TENSORHUB_C_API uint64_t tensorhub_subscriber_newer(tensorhub_subscriber* subscriber);
/// Until there is such a version; reads nothing.
TENSORHUB_C_API tensorhub_status tensorhub_subscriber_wait(tensorhub_subscriber* subscriber,
                                                           tensorhub_selector selector, uint64_t version,
                                                           int64_t timeout_ms, uint64_t* found,
                                                           tensorhub_error** error);
/// What is live; zero: none.
TENSORHUB_C_API uint64_t tensorhub_subscriber_held_version(tensorhub_subscriber* subscriber);
TENSORHUB_C_API tensorhub_status tensorhub_subscriber_leave(tensorhub_subscriber* subscriber,
                                                            int64_t grace_ms,
                                                            tensorhub_publish_report* report,
                                                            tensorhub_error** error);
/// As `tensorhub_publisher_interrupt` and `tensorhub_publisher_free`.
TENSORHUB_C_API void tensorhub_subscriber_interrupt(tensorhub_subscriber* subscriber);
TENSORHUB_C_API void tensorhub_subscriber_free(tensorhub_subscriber* subscriber);

/// Brings each version into this host's memory and serves it from there.
typedef struct tensorhub_seeder tensorhub_seeder;
TENSORHUB_C_API tensorhub_status tensorhub_seeder_start(const tensorhub_worker_options* options,
                                                        tensorhub_seeder** seeder, tensorhub_error** error);
/// Until it holds this version or a later one.
TENSORHUB_C_API tensorhub_status tensorhub_seeder_wait(tensorhub_seeder* seeder, uint64_t version,
                                                       int64_t timeout_ms, uint64_t* held,
                                                       tensorhub_error** error);
TENSORHUB_C_API uint64_t tensorhub_seeder_held_version(const tensorhub_seeder* seeder);
/// The calls of `wait` that run in other threads end soon, with CANCELLED. The seeder goes on.
TENSORHUB_C_API void tensorhub_seeder_interrupt(tensorhub_seeder* seeder);
/// No other call may run. Readers that are left are cut off, and retained versions are not handed over.
TENSORHUB_C_API void tensorhub_seeder_stop(tensorhub_seeder* seeder);

// ---- for processes that look after a system and are no workers (tensorhub/server_client.hpp)

typedef struct tensorhub_client_options {
  size_t struct_bytes;
  const char* server;      ///< "tcp://host:port", or several with commas and bars between
  const char* server_key;  ///< with `public_key` and `secret_key`: as tensorhub_server_options
  const char* public_key;
  const char* secret_key;
  uint64_t server_timeout_ms;  ///< silence after which the next server of the list is asked
} tensorhub_client_options;

typedef struct tensorhub_client tensorhub_client;
/// Connects in the background: no server need be there yet.
TENSORHUB_C_API tensorhub_status tensorhub_client_create(const tensorhub_client_options* options,
                                                         tensorhub_client** client, tensorhub_error** error);
/// The calls that run in other threads end soon, with CANCELLED.
TENSORHUB_C_API void tensorhub_client_interrupt(tensorhub_client* client);
TENSORHUB_C_API void tensorhub_client_free(tensorhub_client* client);

/// What the server said to a question, and whose its texts are. It outlives its client.
typedef struct tensorhub_answer tensorhub_answer;
/// The models, or the one of this name; NULL: all.
TENSORHUB_C_API tensorhub_status tensorhub_client_list(tensorhub_client* client, const char* model,
                                                       int64_t timeout_ms, tensorhub_answer** answer,
                                                       tensorhub_error** error);
/// How the sources of this worker were chosen.
TENSORHUB_C_API tensorhub_status tensorhub_client_why(tensorhub_client* client, const char* model,
                                                      const char* replica, uint32_t shard, int64_t timeout_ms,
                                                      tensorhub_answer** answer, tensorhub_error** error);
/// What has waited for longer than this (negative: for longer than a second), in this model; NULL: in all. Of
/// very many the oldest.
TENSORHUB_C_API tensorhub_status tensorhub_client_stuck(tensorhub_client* client, const char* model,
                                                        int64_t older_than_ms, int64_t timeout_ms,
                                                        tensorhub_answer** answer, tensorhub_error** error);

/// One of the models of an answer to `list`.
typedef struct tensorhub_model_report {
  size_t struct_bytes;
  const char* name;
  uint32_t shards;
  uint64_t bytes;
  uint64_t latest;            ///< zero: none yet
  const uint64_t* available;  ///< the versions that can be read
  size_t available_count;
  size_t replica_count;
} tensorhub_model_report;

/// One of a model's replicas.
typedef struct tensorhub_replica_report {
  size_t struct_bytes;
  const char* name;
  uint32_t shards_joined;
  uint64_t version;  ///< that it holds completely; zero: none
  int32_t torn;
  int32_t spot;
  uint32_t readers;
  uint32_t reserved;  ///< 0
} tensorhub_replica_report;

/// The numbers are those of tensorhub/types/server_reports.hpp, which says what each means.
typedef enum tensorhub_stuck_kind {
  TENSORHUB_STUCK_NO_VERSION = 0,
  TENSORHUB_STUCK_NO_CREDIT = 1,
  TENSORHUB_STUCK_ABSENT_SHARDS = 2,
  TENSORHUB_STUCK_NO_PROGRESS = 3,
  TENSORHUB_STUCK_DRAINING = 4,
  TENSORHUB_STUCK_UNFINISHED_GROUP = 5,
  TENSORHUB_STUCK_CUT_OFF = 6,
  TENSORHUB_STUCK_SILENT_WORKER = 7
} tensorhub_stuck_kind;

/// One of those that wait, in an answer to `stuck`; the oldest is the first.
typedef struct tensorhub_stuck_report {
  size_t struct_bytes;
  tensorhub_stuck_kind kind;
  const char* model;
  const char* replica;
  uint32_t shard;
  uint64_t version;  ///< zero: none is decided
  uint64_t waited_ms;
  const char* peers;   ///< whom it waits for
  const char* advice;  ///< what is missing, and what the user can do about it
} tensorhub_stuck_report;

/// Models, or those that wait; of `why`, zero.
TENSORHUB_C_API size_t tensorhub_answer_count(const tensorhub_answer* answer);
/// Of `why`: a line for each choice, the latest last. Else empty; never NULL.
TENSORHUB_C_API const char* tensorhub_answer_text(const tensorhub_answer* answer);
TENSORHUB_C_API tensorhub_status tensorhub_answer_model(const tensorhub_answer* answer, size_t index,
                                                        tensorhub_model_report* report,
                                                        tensorhub_error** error);
TENSORHUB_C_API tensorhub_status tensorhub_answer_replica(const tensorhub_answer* answer, size_t model,
                                                          size_t index, tensorhub_replica_report* report,
                                                          tensorhub_error** error);
TENSORHUB_C_API tensorhub_status tensorhub_answer_stuck(const tensorhub_answer* answer, size_t index,
                                                        tensorhub_stuck_report* report,
                                                        tensorhub_error** error);
TENSORHUB_C_API void tensorhub_answer_free(tensorhub_answer* answer);

/// As the publisher's functions of these names.
TENSORHUB_C_API tensorhub_status tensorhub_client_retain(tensorhub_client* client, const char* model,
                                                         uint32_t versions, int64_t timeout_ms,
                                                         tensorhub_error** error);
TENSORHUB_C_API tensorhub_status tensorhub_client_pin(tensorhub_client* client, const char* model,
                                                      uint64_t version, int64_t timeout_ms,
                                                      tensorhub_error** error);
TENSORHUB_C_API tensorhub_status tensorhub_client_release(tensorhub_client* client, const char* model,
                                                          uint64_t version, int64_t timeout_ms,
                                                          tensorhub_error** error);
/// Only while no trainer publishes.
TENSORHUB_C_API tensorhub_status tensorhub_client_roll_back_to(tensorhub_client* client, const char* model,
                                                               uint64_t version, int64_t timeout_ms,
                                                               tensorhub_error** error);

/// The replica's workers are declared dead: their calls fail with REPLACED, and their places are free.
/// `workers` may be NULL; it gets how many there were.
TENSORHUB_C_API tensorhub_status tensorhub_client_evict(tensorhub_client* client, const char* model,
                                                        const char* replica, int64_t timeout_ms,
                                                        uint32_t* workers, tensorhub_error** error);
/// The replica is read from no more, until `resume`: its readers are moved to others. Returns OK also at the
/// deadline, with the `readers` that are left. Both numbers may be NULL.
TENSORHUB_C_API tensorhub_status tensorhub_client_drain(tensorhub_client* client, const char* model,
                                                        const char* replica, int64_t timeout_ms,
                                                        uint32_t* workers, uint32_t* readers,
                                                        tensorhub_error** error);
TENSORHUB_C_API tensorhub_status tensorhub_client_resume(tensorhub_client* client, const char* model,
                                                         const char* replica, int64_t timeout_ms,
                                                         tensorhub_error** error);

#if defined(__cplusplus)
}
#endif

#endif
