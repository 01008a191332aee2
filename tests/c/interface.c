// The C interface, from C: whole exchanges in each mode, and what it says of wrong calls.

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tensorhub/tensorhub.h>

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
    BADLY(tensorhub_publisher_publish(trainer, version + 1, 5000, NULL, &error), TENSORHUB_BUSY,
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
        TENSORHUB_INVALID_ARGUMENT, "stage() is for subscribers in mode staged or");
  BADLY(tensorhub_subscriber_install(rollout, 100, NULL, &error), TENSORHUB_INVALID_ARGUMENT,
        "install() is for");
  BADLY(tensorhub_subscriber_update(rollout, (tensorhub_selector)7, 3, 100, NULL, &error),
        TENSORHUB_INVALID_ARGUMENT, "the selector is 7");
  tensorhub_publish_report no_report = {.struct_bytes = 1};
  BADLY(tensorhub_publisher_publish(trainer, 3, 5000, &no_report, &error), TENSORHUB_INVALID_ARGUMENT,
        "report begins with struct_bytes = 1");
  CHECK(tensorhub_publisher_held_version(trainer) == 0);
  WELL(tensorhub_subscriber_leave(rollout, 5000, NULL, &error));
  tensorhub_subscriber_free(rollout);
  tensorhub_publisher_free(trainer);
  free(own);
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
        "tensor.data is not NULL");
  tensor.data = NULL;
  WELL(tensorhub_subscriber_add(rollout, &tensor, &error));
  BADLY(tensorhub_subscriber_tensor(rollout, "wq", &live, &error), TENSORHUB_NOT_FOUND, "");
  BADLY(tensorhub_subscriber_update(rollout, TENSORHUB_LATEST, 0, 100, NULL, &error),
        TENSORHUB_INVALID_ARGUMENT, "update() is for");
  for (uint64_t version = 4; version <= 6; ++version) {
    fill(weights, version);
    WELL(tensorhub_publisher_publish_snapshot(trainer, version, TENSORHUB_DEFAULT_TIMEOUT, NULL, &error));
    WELL(tensorhub_seeder_wait(seed, version, 20000, &held, &error));
    CHECK(held == version && tensorhub_seeder_held_version(seed) == version);
    WELL(tensorhub_subscriber_stage(rollout, TENSORHUB_EXACTLY, version, 20000, NULL, &error));
    WELL(tensorhub_subscriber_install(rollout, 20000, NULL, &error));
    WELL(tensorhub_subscriber_tensor(rollout, "wq", &live, &error));
    CHECK(holds(live, version));
    CHECK(tensorhub_subscriber_held_version(rollout) == version);
  }
  CHECK(tensorhub_subscriber_newer(rollout) == 0);
  BADLY(tensorhub_subscriber_tensor(rollout, "wk", &live, &error), TENSORHUB_INVALID_ARGUMENT, "wk");
  tensorhub_seeder_stop(seed);
  tensorhub_subscriber_free(rollout);
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
  tensorhub_publisher_free(NULL);
  tensorhub_subscriber_free(NULL);
  tensorhub_seeder_stop(NULL);
  tensorhub_server_stop(NULL);
  tensorhub_error_free(NULL);
  CHECK(strcmp(tensorhub_status_name(TENSORHUB_REFUSED), "refused") == 0);
  CHECK(tensorhub_status_name((tensorhub_status)999) != NULL);
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
  tensorhub_publisher* const trainer = new_trainer(address, "auto", weights);
  exchange_staged(trainer, weights, address);
  exchange_double_buffered(trainer, weights, address);
  WELL(tensorhub_publisher_retain(trainer, 1, 5000, &error));
  WELL(tensorhub_publisher_pin(trainer, 6, 5000, &error));
  WELL(tensorhub_publisher_release(trainer, 6, 5000, &error));
  WELL(tensorhub_publisher_retain(trainer, 0, 5000, &error));
  WELL(tensorhub_publisher_roll_back_to(trainer, 2, 5000, &error));
  WELL(tensorhub_publisher_leave(trainer, 5000, NULL, &error));
  wrong_calls(address);
  tensorhub_publisher_free(trainer);
  tensorhub_server_stop(server);
  CHECK(lines_logged > 0);
  free(weights);
  puts("the C interface: passed");
  return 0;
}
