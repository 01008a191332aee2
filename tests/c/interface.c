// The C interface, from C: whole exchanges in each mode, and what it says of wrong calls.

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <tensorhub/tensorhub.h>
#include <threads.h>
#include <time.h>

#define CHECK(condition)                                                           \
  do {                                                                             \
    if (!(condition)) {                                                            \
      fprintf(stderr, "interface.c:%d: CHECK(%s) failed\n", __LINE__, #condition); \
      exit(1);                                                                     \
    }                                                                              \
  } while (0)

static tensorhub_error* error = NULL;

/// The call succeeds; its error is printed if it does not.
static void well(tensorhub_status status, int line) {
  if (status == TENSORHUB_OK && error == NULL) return;
  fprintf(stderr, "interface.c:%d: %s: %s\n", line, tensorhub_status_name(status),
          tensorhub_error_text(error));
  exit(1);
}
#define WELL(call) well(call, __LINE__)

/// The call fails so, and says these words.
static void badly(tensorhub_status status, tensorhub_status expected, const char* words, int line) {
  const int is_right = status == expected && tensorhub_error_status(error) == expected &&
                       strstr(tensorhub_error_text(error), words) != NULL;
  if (!is_right) {
    fprintf(stderr, "interface.c:%d: %s: %s; expected %s with \"%s\"\n", line, tensorhub_status_name(status),
            tensorhub_error_text(error), tensorhub_status_name(expected), words);
    exit(1);
  }
  tensorhub_error_free(error);
  error = NULL;
}
#define BADLY(call, expected, words) badly(call, expected, words, __LINE__)

enum { rows = 300, columns = 1000, values = rows * columns };
static const uint64_t shape[] = {rows, columns};

static tensorhub_tensor tensor_at(float* data) {
  tensorhub_tensor out = {.struct_bytes = sizeof out};
  out.name = "wq";
  out.data = data;
  out.dimensions = shape;
  out.dimension_count = 2;
  out.type = TENSORHUB_F32;
  return out;
}
/// All workers of a model have the same transport, after which it is named here.
static tensorhub_worker_options who(const char* server, const char* transport, const char* replica) {
  tensorhub_worker_options out = {.struct_bytes = sizeof out};
  out.server = server;
  out.model = transport;
  out.transport = transport;
  out.replica = replica;
  return out;
}
static void fill(float* weights, uint64_t version) {
  for (int i = 0; i < values; ++i) weights[i] = (float)(version * 1000) + (float)(i % 991);
}
static int holds(const float* weights, uint64_t version) {
  for (int i = 0; i < values; ++i)
    if (weights[i] != (float)(version * 1000) + (float)(i % 991)) return 0;
  return 1;
}
static float* new_weights(void) {
  float* const out = calloc(values, sizeof(float));
  CHECK(out != NULL);
  return out;
}

static tensorhub_publisher* new_trainer(const char* server, const char* transport, float* weights) {
  const tensorhub_worker_options options = who(server, transport, "trainer-0");
  const tensorhub_tensor tensor = tensor_at(weights);
  tensorhub_publisher* trainer = NULL;
  WELL(tensorhub_publisher_create(&options, &trainer, &error));
  WELL(tensorhub_publisher_add(trainer, &tensor, &error));
  return trainer;
}

/// Two versions after what is published, of which only the second says what has changed.
static void exchange_changed(tensorhub_publisher* trainer, tensorhub_subscriber* rollout, float* weights,
                             const float* own, uint64_t version) {
  const char* const names[] = {"wq", NULL};
  const char* const unknown[] = {"nobody"};
  tensorhub_publish_report published = {.struct_bytes = sizeof published};
  tensorhub_update_report updated = {.struct_bytes = sizeof updated};
  fill(weights, version);
  WELL(tensorhub_publisher_publish_changed(trainer, version, names, 1, TENSORHUB_DEFAULT_TIMEOUT, &published,
                                           &error));
  CHECK(published.version == version && published.bytes == values * sizeof(float));
  WELL(tensorhub_subscriber_update(rollout, TENSORHUB_EXACTLY, version, 20000, NULL, &error));
  CHECK(holds(own, version));
  WELL(tensorhub_publisher_unpublish(trainer, TENSORHUB_DEFAULT_TIMEOUT, NULL, &error));
  WELL(tensorhub_publisher_publish_changed(trainer, version + 1, NULL, 0, TENSORHUB_DEFAULT_TIMEOUT, NULL,
                                           &error));
  WELL(tensorhub_subscriber_update(rollout, TENSORHUB_EXACTLY, version + 1, 20000, &updated, &error));
  CHECK(updated.bytes == 0 && updated.unchanged_bytes == values * sizeof(float));
  CHECK(holds(own, version));
  WELL(tensorhub_publisher_unpublish(trainer, TENSORHUB_DEFAULT_TIMEOUT, NULL, &error));
  BADLY(tensorhub_publisher_publish_changed(trainer, version + 2, unknown, 1, 5000, NULL, &error),
        TENSORHUB_INVALID_ARGUMENT, "tensor 'nobody' is said to have changed");
  BADLY(tensorhub_publisher_publish_changed(trainer, version + 2, names, 2, 5000, NULL, &error),
        TENSORHUB_INVALID_ARGUMENT, "a name in names is NULL");
  BADLY(tensorhub_publisher_publish_changed(trainer, version + 2, NULL, 1, 5000, NULL, &error),
        TENSORHUB_INVALID_ARGUMENT, "names is NULL");
  BADLY(tensorhub_publisher_publish_changed(NULL, version + 2, NULL, 0, 5000, NULL, &error),
        TENSORHUB_INVALID_ARGUMENT, "publisher is NULL");
}

static void exchange_in_place(const char* transport, float* weights, const char* server) {
  tensorhub_publisher* const trainer = new_trainer(server, transport, weights);
  const tensorhub_worker_options options = who(server, transport, "rollout-0");
  float* const own = new_weights();
  const tensorhub_tensor tensor = tensor_at(own);
  tensorhub_subscriber* rollout = NULL;
  WELL(tensorhub_subscriber_create(&options, TENSORHUB_IN_PLACE, &rollout, &error));
  WELL(tensorhub_subscriber_add(rollout, &tensor, &error));
  CHECK(tensorhub_subscriber_held_version(rollout) == 0);
  for (uint64_t version = 1; version <= 2; ++version) {
    tensorhub_publish_report published = {.struct_bytes = sizeof published};
    tensorhub_update_report updated = {.struct_bytes = sizeof updated};
    uint64_t found = 0;
    fill(weights, version);
    WELL(tensorhub_publisher_publish(trainer, version, TENSORHUB_DEFAULT_TIMEOUT, &published, &error));
    CHECK(published.version == version && published.bytes == values * sizeof(float));
    CHECK(tensorhub_publisher_held_version(trainer) == version);
    BADLY(tensorhub_publisher_publish(trainer, version + 1, 5000, NULL, &error), TENSORHUB_STILL_PUBLISHED,
          "call unpublish() first");  // it is published in place
    WELL(tensorhub_subscriber_wait(rollout, TENSORHUB_AT_LEAST, version, 20000, &found, &error));
    CHECK(found == version);
    WELL(tensorhub_subscriber_update(rollout, TENSORHUB_LATEST, 0, 20000, &updated, &error));
    CHECK(updated.version == version && !updated.kept && updated.bytes == values * sizeof(float));
    CHECK(updated.seconds > 0);
    CHECK(holds(own, version));
    CHECK(tensorhub_subscriber_held_version(rollout) == version);
    WELL(tensorhub_subscriber_update(rollout, TENSORHUB_EXACTLY, version, 20000, &updated, &error));
    CHECK(updated.kept);
    WELL(tensorhub_publisher_unpublish(trainer, TENSORHUB_DEFAULT_TIMEOUT, &published, &error));
    CHECK(!published.forced);
  }
  BADLY(tensorhub_subscriber_update(rollout, TENSORHUB_EXACTLY, 3, 100, NULL, &error), TENSORHUB_TIMED_OUT,
        transport);
  BADLY(tensorhub_subscriber_stage(rollout, TENSORHUB_LATEST, 0, 100, NULL, &error),
        TENSORHUB_INVALID_ARGUMENT,
        "stage() is for subscribers in mode staged or double_buffered, and this one is in_place");
  BADLY(tensorhub_subscriber_install(rollout, 100, NULL, &error), TENSORHUB_INVALID_ARGUMENT,
        "install() is for");
  BADLY(tensorhub_subscriber_update(rollout, (tensorhub_selector)7, 3, 100, NULL, &error),
        TENSORHUB_INVALID_ARGUMENT, "the selector is 7");
  tensorhub_publish_report no_report = {.struct_bytes = 1};
  BADLY(tensorhub_publisher_publish(trainer, 3, 5000, &no_report, &error), TENSORHUB_INVALID_ARGUMENT,
        "report begins with struct_bytes = 1");
  CHECK(tensorhub_publisher_held_version(trainer) == 0);
  exchange_changed(trainer, rollout, weights, own, 3);
  WELL(tensorhub_subscriber_leave(rollout, 5000, NULL, &error));
  tensorhub_subscriber_free(rollout);
  tensorhub_publisher_free(trainer);
  free(own);
}

/// A source for tenants lets nobody attach to its process, and is read all the same.
static void exchange_between_tenants(float* weights, const char* server) {
  tensorhub_worker_options options = who(server, "tcp", "trainer-0");
  options.model = "tenants";
  options.for_tenants = 1;
  tensorhub_publisher* trainer = NULL;
  BADLY(tensorhub_publisher_create(&options, &trainer, &error), TENSORHUB_INVALID_ARGUMENT, "for_tenants");
  const char* const transports[] = {"auto", "same_host"};
  for (int i = 0; i < 2; ++i) {
    options.transport = transports[i];
    options.replica = "trainer-0";
    float* const own = new_weights();
    const tensorhub_tensor source = tensor_at(weights);
    const tensorhub_tensor target = tensor_at(own);
    CHECK(prctl(PR_GET_DUMPABLE) == 1);
    WELL(tensorhub_publisher_create(&options, &trainer, &error));
    CHECK(prctl(PR_GET_DUMPABLE) == 0);
    WELL(tensorhub_publisher_add(trainer, &source, &error));
    tensorhub_subscriber* rollout = NULL;
    options.replica = "rollout-0";
    WELL(tensorhub_subscriber_create(&options, TENSORHUB_IN_PLACE, &rollout, &error));
    WELL(tensorhub_subscriber_add(rollout, &target, &error));
    fill(weights, 9);
    WELL(tensorhub_publisher_publish(trainer, 1, TENSORHUB_DEFAULT_TIMEOUT, NULL, &error));
    WELL(tensorhub_subscriber_update(rollout, TENSORHUB_EXACTLY, 1, 20000, NULL, &error));
    CHECK(holds(own, 9));
    WELL(tensorhub_subscriber_leave(rollout, 5000, NULL, &error));
    WELL(tensorhub_publisher_leave(trainer, 5000, NULL, &error));
    tensorhub_subscriber_free(rollout);
    tensorhub_publisher_free(trainer);
    CHECK(prctl(PR_SET_DUMPABLE, 1) == 0);
    free(own);
    options.model = "more tenants";
  }
}

static void exchange_staged(tensorhub_publisher* trainer, float* weights, const char* server) {
  const tensorhub_worker_options options = who(server, "auto", "rollout-1");
  float* const own = new_weights();
  const tensorhub_tensor tensor = tensor_at(own);
  tensorhub_subscriber* rollout = NULL;
  tensorhub_update_report done = {.struct_bytes = sizeof done};
  WELL(tensorhub_subscriber_create(&options, TENSORHUB_STAGED, &rollout, &error));
  WELL(tensorhub_subscriber_add(rollout, &tensor, &error));
  fill(weights, 3);
  WELL(tensorhub_publisher_publish_snapshot(trainer, 3, TENSORHUB_DEFAULT_TIMEOUT, NULL, &error));
  fill(weights, 99);
  WELL(tensorhub_subscriber_stage(rollout, TENSORHUB_EXACTLY, 3, 20000, &done, &error));
  CHECK(done.version == 3);
  CHECK(own[0] == 0);
  WELL(tensorhub_subscriber_install(rollout, 20000, &done, &error));
  CHECK(done.version == 3 && done.bytes == values * sizeof(float));
  CHECK(holds(own, 3));
  tensorhub_subscriber_free(rollout);
  free(own);
}

static void exchange_double_buffered(tensorhub_publisher* trainer, float* weights, const char* server) {
  const tensorhub_worker_options options = who(server, "auto", "rollout-2");
  const tensorhub_worker_options of_seed = who(server, "auto", "seed");
  tensorhub_tensor tensor = tensor_at(weights);
  tensorhub_subscriber* rollout = NULL;
  tensorhub_seeder* seed = NULL;
  const void* live = NULL;
  uint64_t held = 0;
  WELL(tensorhub_seeder_start(&of_seed, &seed, &error));
  WELL(tensorhub_subscriber_create(&options, TENSORHUB_DOUBLE_BUFFERED, &rollout, &error));
  BADLY(tensorhub_subscriber_add(rollout, &tensor, &error), TENSORHUB_INVALID_ARGUMENT,
        "in mode in_place or staged");
  tensor.data = NULL;
  WELL(tensorhub_subscriber_add(rollout, &tensor, &error));
  BADLY(tensorhub_subscriber_tensor(rollout, "wq", &live, &error), TENSORHUB_NOT_FOUND, "");
  for (uint64_t version = 4; version <= 6; ++version) {
    fill(weights, version);
    WELL(tensorhub_publisher_publish_snapshot(trainer, version, TENSORHUB_DEFAULT_TIMEOUT, NULL, &error));
    WELL(tensorhub_seeder_wait(seed, version, 20000, &held, &error));
    CHECK(held == version && tensorhub_seeder_held_version(seed) == version);
    if (version == 5) {  // both in one call
      WELL(tensorhub_subscriber_update(rollout, TENSORHUB_LATEST, 0, 20000, NULL, &error));
    } else {
      WELL(tensorhub_subscriber_stage(rollout, TENSORHUB_EXACTLY, version, 20000, NULL, &error));
      WELL(tensorhub_subscriber_install(rollout, 20000, NULL, &error));
    }
    WELL(tensorhub_subscriber_tensor(rollout, "wq", &live, &error));
    CHECK(holds(live, version));
    CHECK(tensorhub_subscriber_held_version(rollout) == version);
  }
  CHECK(tensorhub_subscriber_newer(rollout) == 0);
  BADLY(tensorhub_subscriber_tensor(rollout, "wk", &live, &error), TENSORHUB_INVALID_ARGUMENT, "wk");
  tensorhub_seeder_stop(seed);
  tensorhub_subscriber_free(rollout);
}

static tensorhub_client* new_client(const char* server) {
  tensorhub_client_options options = {.struct_bytes = sizeof options};
  tensorhub_client* client = NULL;
  options.server = server;
  WELL(tensorhub_client_create(&options, &client, &error));
  return client;
}
static void wait_a_little(void) {
  thrd_sleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
}
/// Until this many versions of the model can be read. The last answer, which the caller frees.
static tensorhub_answer* available(tensorhub_client* client, const char* model, size_t count) {
  for (int tries = 0; tries < 3000; ++tries) {
    tensorhub_answer* answer = NULL;
    tensorhub_model_report report = {.struct_bytes = sizeof report};
    WELL(tensorhub_client_list(client, model, 5000, &answer, &error));
    CHECK(tensorhub_answer_count(answer) == 1);
    WELL(tensorhub_answer_model(answer, 0, &report, &error));
    if (report.available_count == count) return answer;
    tensorhub_answer_free(answer);
    wait_a_little();
  }
  CHECK(!"so many versions are available");
  return NULL;
}

static int wait_for_the_second(void* rollout) {
  return (int)tensorhub_subscriber_wait(rollout, TENSORHUB_AT_LEAST, 2, 60000, NULL, NULL);
}
/// The trainer has published version 1, and the rollout holds it.
static void ask(tensorhub_client* client, tensorhub_subscriber* rollout) {
  tensorhub_answer* answer = available(client, "kept", 1);
  tensorhub_model_report model = {.struct_bytes = sizeof model};
  tensorhub_replica_report replica = {.struct_bytes = sizeof replica};
  tensorhub_stuck_report waiting = {.struct_bytes = sizeof waiting};
  WELL(tensorhub_answer_model(answer, 0, &model, &error));
  CHECK(strcmp(model.name, "kept") == 0 && model.shards == 1 && model.bytes == values * sizeof(float));
  CHECK(model.latest == 1 && model.available[0] == 1 && model.replica_count == 2);
  int seen = 0;
  for (size_t i = 0; i < model.replica_count; ++i) {
    WELL(tensorhub_answer_replica(answer, 0, i, &replica, &error));
    CHECK(replica.shards_joined == 1 && replica.version == 1 && !replica.torn);
    seen += strcmp(replica.name, replica.spot ? "rollout-0" : "trainer-0") == 0;
  }
  CHECK(seen == 2);
  BADLY(tensorhub_answer_replica(answer, 0, 2, &replica, &error), TENSORHUB_INVALID_ARGUMENT, "no replica 2");
  BADLY(tensorhub_answer_model(answer, 1, &model, &error), TENSORHUB_INVALID_ARGUMENT, "no model 1");
  BADLY(tensorhub_answer_model(answer, 0, NULL, &error), TENSORHUB_INVALID_ARGUMENT, "report is NULL");
  BADLY(tensorhub_answer_stuck(answer, 0, &waiting, &error), TENSORHUB_INVALID_ARGUMENT, "which has 0");
  CHECK(strcmp(tensorhub_answer_text(answer), "") == 0);
  tensorhub_answer_free(answer);
  WELL(tensorhub_client_why(client, "kept", "rollout-0", 0, 5000, &answer, &error));
  CHECK(strstr(tensorhub_answer_text(answer), "trainer-0") != NULL && tensorhub_answer_count(answer) == 0);
  tensorhub_answer_free(answer);

  thrd_t waits;
  CHECK(thrd_create(&waits, wait_for_the_second, rollout) == thrd_success);
  for (answer = NULL; tensorhub_answer_count(answer) == 0; wait_a_little()) {
    tensorhub_answer_free(answer);
    WELL(tensorhub_client_stuck(client, "kept", 0, 5000, &answer, &error));
  }
  WELL(tensorhub_answer_stuck(answer, 0, &waiting, &error));
  CHECK(waiting.kind == TENSORHUB_STUCK_NO_VERSION && strcmp(waiting.replica, "rollout-0") == 0);
  CHECK(strcmp(waiting.model, "kept") == 0 && waiting.shard == 0 && strlen(waiting.advice) > 0);
  tensorhub_answer_free(answer);
  WELL(tensorhub_client_stuck(client, NULL, 600000, 5000, &answer, &error));
  CHECK(tensorhub_answer_count(answer) == 0);
  tensorhub_answer_free(answer);
  uint32_t workers = 0;
  WELL(tensorhub_client_evict(client, "kept", "rollout-0", 5000, &workers, &error));
  CHECK(workers == 1);
  int status = 0;
  CHECK(thrd_join(waits, &status) == thrd_success && status == TENSORHUB_REPLACED);
}

static void order(tensorhub_client* client, tensorhub_publisher* trainer, float* weights) {
  WELL(tensorhub_client_pin(client, "kept", 1, 5000, &error));
  WELL(tensorhub_publisher_unpublish(trainer, 20000, NULL, &error));
  tensorhub_answer_free(available(client, "kept", 1));  // a copy in host memory
  WELL(tensorhub_client_release(client, "kept", 1, 5000, &error));
  tensorhub_answer_free(available(client, "kept", 0));
  fill(weights, 2);
  WELL(tensorhub_publisher_publish(trainer, 2, 5000, NULL, &error));
  WELL(tensorhub_client_retain(client, "kept", 1, 5000, &error));
  WELL(tensorhub_publisher_unpublish(trainer, 20000, NULL, &error));
  tensorhub_answer_free(available(client, "kept", 1));
  WELL(tensorhub_client_retain(client, "kept", 0, 5000, &error));
  tensorhub_answer_free(available(client, "kept", 0));
  fill(weights, 3);
  BADLY(tensorhub_publisher_publish(trainer, 2, 5000, NULL, &error), TENSORHUB_VERSION_CONFLICT, "");
  WELL(tensorhub_client_roll_back_to(client, "kept", 1, 5000, &error));
  WELL(tensorhub_publisher_publish(trainer, 2, 5000, NULL, &error));
  BADLY(tensorhub_client_pin(client, NULL, 1, 5000, &error), TENSORHUB_INVALID_ARGUMENT, "model is NULL");
  // A server that is new does not say before its grace period has passed that there is no such replica.
  CHECK(tensorhub_client_evict(client, "kept", "nobody", 100, NULL, NULL) != TENSORHUB_OK);
}

/// By keys alone a worker has digests that nobody forges; one that trusts its sources does not fit to those.
/// (The keys are those of ZeroMQ's RFC 26: secrets to nobody.)
static void exchange_with_keys(float* weights) {
  const char* const allowed[] = {"Yne@$w-vo<fVvi]a<NY6T1ed:M$fCG*[IaLV{hID"};
  tensorhub_server_options how = {.struct_bytes = sizeof how};
  how.public_key = "rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7";
  how.secret_key = "JTKVSB%%)wK0E.X)V>+}o?pNmC{O&4W4b!Ni{Lh6";
  how.allowed_keys = allowed;
  how.allowed_key_count = 1;
  tensorhub_server* server = NULL;
  WELL(tensorhub_server_start(&how, &server, &error));
  tensorhub_worker_options options = who(tensorhub_server_address(server), "tcp", "trainer-0");
  options.server_key = how.public_key;
  options.public_key = allowed[0];
  options.secret_key = "D:)Q[IlAW!ahhC2ac:9*A}h:p?([4%wOTJ%JR%cs";
  float* const own = new_weights();
  const tensorhub_tensor source = tensor_at(weights);
  const tensorhub_tensor target = tensor_at(own);
  tensorhub_publisher* trainer = NULL;
  WELL(tensorhub_publisher_create(&options, &trainer, &error));
  WELL(tensorhub_publisher_add(trainer, &source, &error));
  fill(weights, 1);
  WELL(tensorhub_publisher_publish(trainer, 1, TENSORHUB_DEFAULT_TIMEOUT, NULL, &error));
  for (options.trust_sources = 0; options.trust_sources < 2; ++options.trust_sources) {
    options.replica = options.trust_sources ? "rollout-1" : "rollout-0";
    tensorhub_subscriber* rollout = NULL;
    WELL(tensorhub_subscriber_create(&options, TENSORHUB_IN_PLACE, &rollout, &error));
    WELL(tensorhub_subscriber_add(rollout, &target, &error));
    const tensorhub_status status =
        tensorhub_subscriber_update(rollout, TENSORHUB_EXACTLY, 1, 20000, NULL, &error);
    if (options.trust_sources)
      BADLY(status, TENSORHUB_POLICY_MISMATCH, "blake3_128");
    else
      WELL(status);
    CHECK(holds(own, 1));
    tensorhub_subscriber_free(rollout);
  }
  tensorhub_publisher_free(trainer);
  tensorhub_server_stop(server);
  free(own);
}

static void look_after(float* weights, const char* server) {
  tensorhub_worker_options options = who(server, "tcp", "trainer-0");
  options.model = "kept";
  tensorhub_publisher* trainer = NULL;
  tensorhub_tensor tensor = tensor_at(weights);
  WELL(tensorhub_publisher_create(&options, &trainer, &error));
  WELL(tensorhub_publisher_add(trainer, &tensor, &error));
  fill(weights, 1);
  WELL(tensorhub_publisher_publish(trainer, 1, 5000, NULL, &error));
  options.replica = "rollout-0";
  options.spot = 1;
  float* const own = new_weights();
  tensor = tensor_at(own);
  tensorhub_subscriber* rollout = NULL;
  WELL(tensorhub_subscriber_create(&options, TENSORHUB_IN_PLACE, &rollout, &error));
  WELL(tensorhub_subscriber_add(rollout, &tensor, &error));
  tensorhub_client* const client = new_client(server);
  uint32_t workers = 0;
  uint32_t readers = 9;
  WELL(tensorhub_client_drain(client, "kept", "trainer-0", TENSORHUB_DEFAULT_TIMEOUT, &workers, &readers,
                              &error));
  CHECK(workers == 1 && readers == 0);
  BADLY(tensorhub_subscriber_update(rollout, TENSORHUB_LATEST, 0, 200, NULL, &error), TENSORHUB_TIMED_OUT,
        "");
  WELL(tensorhub_client_resume(client, "kept", "trainer-0", 5000, &error));
  WELL(tensorhub_subscriber_update(rollout, TENSORHUB_LATEST, 0, 20000, NULL, &error));
  CHECK(holds(own, 1));
  ask(client, rollout);
  tensorhub_subscriber_free(rollout);
  free(own);
  order(client, trainer, weights);
  tensorhub_client_free(client);
  tensorhub_publisher_free(trainer);
}

static atomic_int has_ended;
static thrd_t started(thrd_start_t call, void* object) {
  thrd_t out;
  has_ended = 0;
  CHECK(thrd_create(&out, call, object) == thrd_success);
  return out;
}
static int ended(tensorhub_status status) {
  has_ended = 1;
  return (int)status;
}
static tensorhub_status joined(thrd_t thread) {
  int status = 0;
  CHECK(thrd_join(thread, &status) == thrd_success);
  return (tensorhub_status)status;
}

static int ask_nobody(void* client) {
  tensorhub_answer* answer = NULL;
  return ended(tensorhub_client_list(client, NULL, 60000, &answer, NULL));
}
static void wrong_clients(void) {
  tensorhub_client_options options = {.struct_bytes = sizeof options};
  tensorhub_client* client = NULL;
  BADLY(tensorhub_client_create(&options, &client, &error), TENSORHUB_INVALID_ARGUMENT,
        "options.server is NULL");
  options.server = "tcp://127.0.0.1:9";
  options.public_key = "of nobody";
  BADLY(tensorhub_client_create(&options, &client, &error), TENSORHUB_INVALID_ARGUMENT,
        "options.server_key is NULL");
  CHECK(client == NULL);
  client = new_client("tcp://127.0.0.1:9");  // nobody listens there
  BADLY(tensorhub_client_list(client, NULL, 5000, NULL, &error), TENSORHUB_INVALID_ARGUMENT,
        "answer is NULL");
  tensorhub_answer* answer = NULL;
  BADLY(tensorhub_client_list(client, NULL, 100, &answer, &error), TENSORHUB_DISCONNECTED, "");
  CHECK(answer == NULL);
  BADLY(tensorhub_client_resume(client, "kept", "trainer-0", 100, &error), TENSORHUB_DISCONNECTED, "");
  const thrd_t asks = started(ask_nobody, client);
  for (; !has_ended; wait_a_little()) tensorhub_client_interrupt(client);
  CHECK(joined(asks) == TENSORHUB_CANCELLED);
  tensorhub_client_free(client);
  tensorhub_client_free(NULL);
  tensorhub_client_interrupt(NULL);
  tensorhub_answer_free(NULL);
  CHECK(tensorhub_answer_count(NULL) == 0 && strcmp(tensorhub_answer_text(NULL), "") == 0);
}

static int update_to_nothing(void* rollout) {
  return ended(tensorhub_subscriber_update(rollout, TENSORHUB_EXACTLY, 1, 60000, NULL, NULL));
}
static int wait_for_nothing(void* rollout) {
  return ended(tensorhub_subscriber_wait(rollout, TENSORHUB_LATEST, 0, 60000, NULL, NULL));
}
static int publish_to_nobody(void* trainer) {
  return ended(tensorhub_publisher_publish(trainer, 1, 60000, NULL, NULL));
}
static int wait_for_a_seed(void* seed) {
  return ended(tensorhub_seeder_wait(seed, 1, 60000, NULL, NULL));
}
static void interrupts(float* weights, const char* server) {
  tensorhub_worker_options options = who(server, "tcp", "rollout-0");
  options.model = "nothing";
  float* const own = new_weights();
  const tensorhub_tensor tensor = tensor_at(own);
  tensorhub_subscriber* rollout = NULL;
  WELL(tensorhub_subscriber_create(&options, TENSORHUB_IN_PLACE, &rollout, &error));
  WELL(tensorhub_subscriber_add(rollout, &tensor, &error));
  const thrd_start_t calls[] = {update_to_nothing, wait_for_nothing};
  for (int i = 0; i < 2; ++i) {
    const thrd_t call = started(calls[i], rollout);
    for (; !has_ended; wait_a_little()) tensorhub_subscriber_interrupt(rollout);
    CHECK(joined(call) == TENSORHUB_CANCELLED);
  }
  tensorhub_subscriber_free(rollout);
  free(own);
  tensorhub_seeder* seed = NULL;
  options.replica = "seed";
  WELL(tensorhub_seeder_start(&options, &seed, &error));
  const thrd_t waits = started(wait_for_a_seed, seed);
  for (; !has_ended; wait_a_little()) tensorhub_seeder_interrupt(seed);
  CHECK(joined(waits) == TENSORHUB_CANCELLED);
  tensorhub_seeder_stop(seed);
  tensorhub_publisher* const trainer = new_trainer("tcp://127.0.0.1:9", "tcp", weights);  // no server's
  const thrd_t publishes = started(publish_to_nobody, trainer);
  for (; !has_ended; wait_a_little()) tensorhub_publisher_interrupt(trainer);
  CHECK(joined(publishes) == TENSORHUB_CANCELLED);
  tensorhub_publisher_free(trainer);
}

static void take_exactly(tensorhub_subscriber* rollout, tensorhub_mode mode, uint64_t version) {
  if (mode == TENSORHUB_IN_PLACE) {
    WELL(tensorhub_subscriber_update(rollout, TENSORHUB_EXACTLY, version, 20000, NULL, &error));
  } else {
    WELL(tensorhub_subscriber_stage(rollout, TENSORHUB_EXACTLY, version, 20000, NULL, &error));
    WELL(tensorhub_subscriber_install(rollout, 20000, NULL, &error));
  }
}
/// Of two rollouts in another datacenter the one that prefers what is near takes a version after the other.
static void take_what_is_near(float* weights, const char* server, tensorhub_mode mode) {
  tensorhub_worker_options options = who(server, "tcp", "trainer-0");
  options.model = mode == TENSORHUB_IN_PLACE ? "near" : "near, staged";
  options.datacenter = "eu-1";
  tensorhub_tensor tensor = tensor_at(weights);
  tensorhub_publisher* trainer = NULL;
  WELL(tensorhub_publisher_create(&options, &trainer, &error));
  WELL(tensorhub_publisher_add(trainer, &tensor, &error));
  fill(weights, 1);
  WELL(tensorhub_publisher_publish(trainer, 1, 20000, NULL, &error));
  float* own[2];
  tensorhub_subscriber* rollouts[2];
  const char* const names[2] = {"rollout-0", "rollout-1"};
  options.datacenter = "us-2";
  for (int i = 0; i < 2; ++i) {
    options.replica = names[i];
    options.prefer_local = i == 0 ? 7 : 0;
    own[i] = new_weights();
    tensor = tensor_at(own[i]);
    WELL(tensorhub_subscriber_create(&options, mode, &rollouts[i], &error));
    WELL(tensorhub_subscriber_add(rollouts[i], &tensor, &error));
  }
  take_exactly(rollouts[0], mode, 1);  // whoever holds nothing takes what there is
  WELL(tensorhub_publisher_unpublish(trainer, 20000, NULL, &error));
  fill(weights, 2);
  WELL(tensorhub_publisher_publish(trainer, 2, 20000, NULL, &error));
  if (mode == TENSORHUB_IN_PLACE)
    BADLY(tensorhub_subscriber_update(rollouts[0], TENSORHUB_EXACTLY, 2, 300, NULL, &error),
          TENSORHUB_TIMED_OUT, "");
  else
    BADLY(tensorhub_subscriber_stage(rollouts[0], TENSORHUB_EXACTLY, 2, 300, NULL, &error),
          TENSORHUB_TIMED_OUT, "");
  CHECK(holds(own[0], 1));
  take_exactly(rollouts[1], mode, 2);
  take_exactly(rollouts[0], mode, 2);
  for (int i = 0; i < 2; ++i) {
    CHECK(holds(own[i], 2));
    tensorhub_subscriber_free(rollouts[i]);
    free(own[i]);
  }
  tensorhub_publisher_free(trainer);
}

/// A program with a newer header than the library's.
static void newer_structures(float* weights, const char* server) {
  struct {
    tensorhub_worker_options known;
    uint64_t added[2];
  } options = {.known = who(server, "tcp", "trainer-0")};
  options.known.struct_bytes = sizeof options;
  options.known.model = "newer";
  tensorhub_publisher* trainer = NULL;
  options.added[1] = 1ull << 63;
  BADLY(tensorhub_publisher_create(&options.known, &trainer, &error), TENSORHUB_INVALID_ARGUMENT,
        "options has a field set that this library, version ");
  CHECK(trainer == NULL);
  options.added[1] = 0;
  options.known.reserved = 1;
  BADLY(tensorhub_publisher_create(&options.known, &trainer, &error), TENSORHUB_INVALID_ARGUMENT,
        "does not know: update the library");
  options.known.reserved = 0;
  WELL(tensorhub_publisher_create(&options.known, &trainer, &error));
  struct {
    tensorhub_tensor known;
    unsigned char added[8];
  } tensor = {.known = tensor_at(weights), .added = {1}};
  tensor.known.struct_bytes = sizeof tensor;
  BADLY(tensorhub_publisher_add(trainer, &tensor.known, &error), TENSORHUB_INVALID_ARGUMENT,
        "tensor has a field set");
  tensor.added[0] = 0;
  WELL(tensorhub_publisher_add(trainer, &tensor.known, &error));
  struct {
    tensorhub_publish_report known;
    unsigned char added[16];
  } report;
  memset(&report, 0xff, sizeof report);
  report.known.struct_bytes = sizeof report;
  WELL(tensorhub_publisher_publish(trainer, 1, 20000, &report.known, &error));
  CHECK(report.known.struct_bytes == sizeof report && report.known.version == 1);
  CHECK(report.known.lost == 0 && report.known.changed == 0);
  for (size_t i = 0; i < sizeof report.added; ++i) CHECK(report.added[i] == 0);
  tensorhub_publisher_free(trainer);
}

static int32_t lines_logged = 0;
static void note_line(void* context, int32_t level, const char* text) {
  CHECK(context == &lines_logged && level >= 0 && level <= 3 && strlen(text) > 0);
  ++lines_logged;
}

static void wrong_calls(const char* server) {
  tensorhub_worker_options options = who(server, "auto", "rollout-9");
  tensorhub_publisher* trainer = NULL;
  BADLY(tensorhub_publisher_create(NULL, &trainer, &error), TENSORHUB_INVALID_ARGUMENT, "options is NULL");
  BADLY(tensorhub_publisher_create(&options, NULL, &error), TENSORHUB_INVALID_ARGUMENT, "publisher is NULL");
  CHECK(tensorhub_publisher_create(NULL, &trainer, NULL) == TENSORHUB_INVALID_ARGUMENT);
  options.struct_bytes = 0;
  BADLY(tensorhub_publisher_create(&options, &trainer, &error), TENSORHUB_INVALID_ARGUMENT,
        "struct_bytes = 0");
  options.struct_bytes = sizeof options;
  options.transport = "pigeon";
  BADLY(tensorhub_publisher_create(&options, &trainer, &error), TENSORHUB_INVALID_ARGUMENT,
        "take auto, tcp or same_host");
  options.transport = NULL;
  options.model = NULL;
  BADLY(tensorhub_publisher_create(&options, &trainer, &error), TENSORHUB_INVALID_ARGUMENT,
        "options.model is NULL");
  options.model = "auto";
  options.listen_port = 70000;
  BADLY(tensorhub_publisher_create(&options, &trainer, &error), TENSORHUB_INVALID_ARGUMENT, "70000");
  options.listen_port = 0;
  options.secret_key = "of a pair whose other half, and whose server, are not named";
  BADLY(tensorhub_publisher_create(&options, &trainer, &error), TENSORHUB_INVALID_ARGUMENT,
        "options.server_key is NULL");
  options.secret_key = NULL;
  CHECK(trainer == NULL);
  // An older program's structure ends after the first fields; the rest has its defaults.
  options.transport = "pigeon";
  options.struct_bytes = offsetof(tensorhub_worker_options, transport);
  WELL(tensorhub_publisher_create(&options, &trainer, &error));
  tensorhub_tensor tensor = tensor_at(NULL);
  tensor.type = (tensorhub_dtype)77;
  BADLY(tensorhub_publisher_add(trainer, &tensor, &error), TENSORHUB_INVALID_ARGUMENT, "tensor.type is 77");
  tensor.type = (tensorhub_dtype)(256 + TENSORHUB_F32);
  BADLY(tensorhub_publisher_add(trainer, &tensor, &error), TENSORHUB_INVALID_ARGUMENT, "tensor.type is ");
  tensor.type = TENSORHUB_F32;
  tensor.name = NULL;
  BADLY(tensorhub_publisher_add(trainer, &tensor, &error), TENSORHUB_INVALID_ARGUMENT, "tensor.name is NULL");
  tensor.name = "wq";
  tensor.dimensions = NULL;
  BADLY(tensorhub_publisher_add(trainer, &tensor, &error), TENSORHUB_INVALID_ARGUMENT,
        "tensor.dimensions is NULL");
  BADLY(tensorhub_publisher_add(NULL, &tensor, &error), TENSORHUB_INVALID_ARGUMENT, "publisher is NULL");
  tensorhub_publisher_free(trainer);

  tensorhub_subscriber* rollout = NULL;
  options = who(server, "auto", "rollout-9");
  BADLY(tensorhub_subscriber_create(&options, (tensorhub_mode)9, &rollout, &error),
        TENSORHUB_INVALID_ARGUMENT, "the mode is 9");
  tensorhub_server* other = NULL;
  tensorhub_server_options how = {.struct_bytes = sizeof how};
  how.public_key = "a key without its other half, with which nobody would be refused";
  BADLY(tensorhub_server_start(&how, &other, &error), TENSORHUB_INVALID_ARGUMENT, "no secret_key");
  how.public_key = NULL;
  how.address = "nonsense";
  CHECK(tensorhub_server_start(&how, &other, NULL) != TENSORHUB_OK && other == NULL);
}

static void calls_of_nothing(void) {
  tensorhub_publisher_interrupt(NULL);
  tensorhub_subscriber_interrupt(NULL);
  tensorhub_seeder_interrupt(NULL);
  tensorhub_publisher_free(NULL);
  tensorhub_subscriber_free(NULL);
  tensorhub_seeder_stop(NULL);
  tensorhub_server_stop(NULL);
  tensorhub_error_free(NULL);
}

/// As tensorhub/error.hpp says.
static void statuses(void) {
  const tensorhub_status may_pass[] = {
      TENSORHUB_UNAVAILABLE, TENSORHUB_TIMED_OUT,    TENSORHUB_BUSY,
      TENSORHUB_TORN,        TENSORHUB_GROUP_FAILED, TENSORHUB_CONTRACT_BROKEN,
      TENSORHUB_CORRUPT,     TENSORHUB_SOURCE_LOST,  TENSORHUB_DISCONNECTED};
  for (int status = TENSORHUB_OK; status <= TENSORHUB_STILL_PUBLISHED; ++status) {
    int expected = 0;
    for (size_t i = 0; i < sizeof may_pass / sizeof may_pass[0]; ++i) expected |= (int)may_pass[i] == status;
    CHECK(tensorhub_status_retryable((tensorhub_status)status) == expected);
  }
  CHECK(tensorhub_status_retryable((tensorhub_status)999) == 0);
  CHECK(strcmp(tensorhub_status_name(TENSORHUB_REFUSED), "refused") == 0);
  CHECK(tensorhub_status_name((tensorhub_status)999) != NULL);
}

/// What nothing would use is not taken.
static void useless_options(const char* server) {
  tensorhub_publisher* trainer = NULL;
  tensorhub_worker_options options = who(server, "same_host", "trainer-9");
  options.trust_sources = 1;
  BADLY(tensorhub_publisher_create(&options, &trainer, &error), TENSORHUB_INVALID_ARGUMENT, "trust_sources");
  options = who(server, "same_host", "trainer-9");
  options.listen_host = "10.0.0.1";
  BADLY(tensorhub_publisher_create(&options, &trainer, &error), TENSORHUB_INVALID_ARGUMENT, "listen_host");
  options = who(server, "same_host", "trainer-9");
  options.listen_port = 5571;
  BADLY(tensorhub_publisher_create(&options, &trainer, &error), TENSORHUB_INVALID_ARGUMENT, "listen_port");
  options = who(server, "same_host", "trainer-9");
  options.advertised_host = "10.0.0.1";
  BADLY(tensorhub_publisher_create(&options, &trainer, &error), TENSORHUB_INVALID_ARGUMENT,
        "advertised_host");
  options = who(server, "same_host", "trainer-9");
  options.prefer_local = 1;
  BADLY(tensorhub_publisher_create(&options, &trainer, &error), TENSORHUB_INVALID_ARGUMENT, "prefer_local");
  tensorhub_seeder* seed = NULL;
  BADLY(tensorhub_seeder_start(&options, &seed, &error), TENSORHUB_INVALID_ARGUMENT, "prefer_local");
  CHECK(trainer == NULL && seed == NULL);
}

/// An entry of `allowed_keys` is a line of an allow-list, as in a file. The keys are those of zmq_curve(7).
static void allowed_keys_are_lines(void) {
  tensorhub_server_options how = {.struct_bytes = sizeof how};
  how.public_key = "rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7";
  how.secret_key = "JTKVSB%%)wK0E.X)V>+}o?pNmC{O&4W4b!Ni{Lh6";
  const char* const twice[] = {"Yne@$w-vo<fVvi]a<NY6T1ed:M$fCG*[IaLV{hID rollouts may=read",
                               "Yne@$w-vo<fVvi]a<NY6T1ed:M$fCG*[IaLV{hID oncall may=look,evict"};
  how.allowed_keys = twice;
  how.allowed_key_count = 2;
  tensorhub_server* server = NULL;
  BADLY(tensorhub_server_start(&how, &server, &error), TENSORHUB_INVALID_ARGUMENT, "second time");
  const char* const nobody[] = {"rollouts may=read"};
  how.allowed_keys = nobody;
  how.allowed_key_count = 1;
  BADLY(tensorhub_server_start(&how, &server, &error), TENSORHUB_INVALID_ARGUMENT, "no public key");
  const char* const with_a_tab[] = {"Yne@$w-vo<fVvi]a<NY6T1ed:M$fCG*[IaLV{hID\toncall may=look"};
  how.allowed_keys = with_a_tab;
  WELL(tensorhub_server_start(&how, &server, &error));
  tensorhub_client_options options = {.struct_bytes = sizeof options};
  options.server = tensorhub_server_address(server);
  options.server_key = how.public_key;
  options.public_key = "Yne@$w-vo<fVvi]a<NY6T1ed:M$fCG*[IaLV{hID";
  options.secret_key = "D:)Q[IlAW!ahhC2ac:9*A}h:p?([4%wOTJ%JR%cs";
  tensorhub_client* client = NULL;
  tensorhub_answer* answer = NULL;
  WELL(tensorhub_client_create(&options, &client, &error));
  WELL(tensorhub_client_list(client, NULL, 20000, &answer, &error));
  tensorhub_answer_free(answer);
  tensorhub_client_free(client);
  tensorhub_server_stop(server);
}

/// How a question ends that is asked with these keys.
static tensorhub_status asked(const tensorhub_client_options* options, int64_t timeout_ms) {
  tensorhub_client* client = NULL;
  tensorhub_answer* answer = NULL;
  WELL(tensorhub_client_create(options, &client, &error));
  const tensorhub_status out = tensorhub_client_list(client, NULL, timeout_ms, &answer, NULL);
  tensorhub_answer_free(answer);
  tensorhub_client_free(client);
  return out;
}
static atomic_int may_log;
static void log_slowly(void* context, int32_t level, const char* text) {
  (void)level, (void)text;
  while (!may_log) wait_a_little();
  ++*(int32_t*)context;
}
/// At a server that runs, and whose log takes all this time.
static void allow_and_revoke(void) {
  const char* const key = "Yne@$w-vo<fVvi]a<NY6T1ed:M$fCG*[IaLV{hID";
  const char* const without_rights[] = {"rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7"};  // which is logged
  char line[64];
  snprintf(line, sizeof line, "%s oncall may=look", key);
  int32_t lines = 0;
  int32_t was_allowed = 7;
  tensorhub_server* server = NULL;
  tensorhub_server_options how = {.struct_bytes = sizeof how};
  WELL(tensorhub_server_start(&how, &server, &error));
  BADLY(tensorhub_server_allow(server, line, &error), TENSORHUB_INVALID_ARGUMENT, "no allow-list");
  tensorhub_server_stop(server);
  how.log = log_slowly;
  how.log_context = &lines;
  how.public_key = without_rights[0];
  how.secret_key = "JTKVSB%%)wK0E.X)V>+}o?pNmC{O&4W4b!Ni{Lh6";
  how.allowed_keys = without_rights;
  how.allowed_key_count = 1;
  WELL(tensorhub_server_start(&how, &server, &error));
  tensorhub_client_options options = {.struct_bytes = sizeof options};
  options.server = tensorhub_server_address(server);
  options.server_key = how.public_key;
  options.public_key = key;
  options.secret_key = "D:)Q[IlAW!ahhC2ac:9*A}h:p?([4%wOTJ%JR%cs";
  CHECK(asked(&options, 20000) == TENSORHUB_REFUSED);
  WELL(tensorhub_server_allow(server, line, &error));
  CHECK(asked(&options, 20000) == TENSORHUB_OK);
  WELL(tensorhub_server_revoke(server, key, &was_allowed, &error));
  CHECK(was_allowed == 1);
  CHECK(asked(&options, 20000) == TENSORHUB_REFUSED);
  WELL(tensorhub_server_revoke(server, key, &was_allowed, &error));
  CHECK(was_allowed == 0);
  WELL(tensorhub_server_revoke(server, key, NULL, &error));
  BADLY(tensorhub_server_allow(server, "oncall may=look", &error), TENSORHUB_INVALID_ARGUMENT,
        "no public key");
  BADLY(tensorhub_server_allow(server, NULL, &error), TENSORHUB_INVALID_ARGUMENT, "line is NULL");
  BADLY(tensorhub_server_allow(NULL, line, &error), TENSORHUB_INVALID_ARGUMENT, "server is NULL");
  BADLY(tensorhub_server_revoke(server, NULL, NULL, &error), TENSORHUB_INVALID_ARGUMENT, "key is NULL");
  BADLY(tensorhub_server_revoke(NULL, key, NULL, &error), TENSORHUB_INVALID_ARGUMENT, "server is NULL");
  may_log = 1;
  tensorhub_server_stop(server);
  CHECK(lines > 0);
}

int main(void) {
  CHECK(tensorhub_abi_version() == TENSORHUB_ABI_VERSION);
  CHECK(strlen(tensorhub_version()) >= 5);
  tensorhub_server* server = NULL;
  tensorhub_server_options how = {.struct_bytes = sizeof how};
  how.log = note_line;
  how.log_context = &lines_logged;
  WELL(tensorhub_server_start(&how, &server, &error));
  const char* const address = tensorhub_server_address(server);
  float* const weights = new_weights();
  exchange_in_place("tcp", weights, address);
  exchange_in_place("same_host", weights, address);
  exchange_between_tenants(weights, address);
  tensorhub_publisher* const trainer = new_trainer(address, "auto", weights);
  exchange_staged(trainer, weights, address);
  exchange_double_buffered(trainer, weights, address);
  WELL(tensorhub_publisher_retain(trainer, 1, 5000, &error));
  WELL(tensorhub_publisher_pin(trainer, 6, 5000, &error));
  WELL(tensorhub_publisher_release(trainer, 6, 5000, &error));
  WELL(tensorhub_publisher_retain(trainer, 0, 5000, &error));
  WELL(tensorhub_publisher_roll_back_to(trainer, 2, 5000, &error));
  WELL(tensorhub_publisher_leave(trainer, 5000, NULL, &error));
  interrupts(weights, address);
  take_what_is_near(weights, address, TENSORHUB_IN_PLACE);
  take_what_is_near(weights, address, TENSORHUB_STAGED);
  newer_structures(weights, address);
  statuses();
  wrong_calls(address);
  calls_of_nothing();
  useless_options(address);
  allowed_keys_are_lines();
  allow_and_revoke();
  wrong_clients();
  look_after(weights, address);
  exchange_with_keys(weights);
  tensorhub_publisher_free(trainer);
  tensorhub_server_stop(server);
  CHECK(lines_logged > 0);
  free(weights);
  puts("the C interface: passed");
  return 0;
}
