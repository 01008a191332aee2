// hello_c: the first example in C, in one program. The parent is the reference server and the trainer, the
// child is a rollout, which reads three versions into its own memory.
#define _DEFAULT_SOURCE  // dprintf and usleep, also with -std=c11
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <tensorhub/tensorhub.h>
#include <unistd.h>

enum { values = 1 << 20 };
static float weights[values];

static void check(tensorhub_status status, tensorhub_error* error) {
  if (status == TENSORHUB_OK) return;
  fprintf(stderr, "%s\n", tensorhub_error_text(error));  // what is wrong, and what to do
  exit(1);
}
static tensorhub_tensor wq(void) {
  static const uint64_t shape[] = {1024, 1024};
  return (tensorhub_tensor){.struct_bytes = sizeof(tensorhub_tensor),
                            .name = "layers.0.wq",
                            .data = weights,
                            .dimensions = shape,
                            .dimension_count = 2,
                            .type = TENSORHUB_F32};
}
static tensorhub_worker_options who(const char* server, const char* replica) {
  return (tensorhub_worker_options){.struct_bytes = sizeof(tensorhub_worker_options),
                                    .server = server,
                                    .model = "policy",
                                    .replica = replica};
}

static int roll_out(const char* server) {
  tensorhub_error* error = NULL;
  tensorhub_subscriber* rollout = NULL;
  const tensorhub_worker_options options = who(server, "rollout-0");
  const tensorhub_tensor tensor = wq();
  check(tensorhub_subscriber_create(&options, TENSORHUB_IN_PLACE, &rollout, &error), error);
  check(tensorhub_subscriber_add(rollout, &tensor, &error), error);
  for (uint64_t step = 1; step <= 3; ++step) {
    tensorhub_update_report update = {.struct_bytes = sizeof update};
    check(tensorhub_subscriber_update(rollout, TENSORHUB_AT_LEAST, step, 60000, &update, &error), error);
    const int is_right = weights[0] == (float)update.version && weights[values - 1] == (float)update.version;
    printf("rollout: version %d, %.1f MB in %.1f ms, bytes are %s\n", (int)update.version,
           (double)update.bytes / 1e6, update.pull_seconds * 1e3, is_right ? "right" : "wrong");
    if (!is_right) return 1;
    step = update.version;
  }
  tensorhub_subscriber_free(rollout);
  return 0;
}

int main(void) {
  int line[2];
  if (pipe(line) != 0) return 1;
  const pid_t child = fork();  // before there is any handle
  if (child == 0) {
    char server[256] = {0};
    close(line[1]);  // so that the child notices when its parent ends
    return read(line[0], server, sizeof server - 1) > 0 ? roll_out(server) : 1;
  }
  tensorhub_error* error = NULL;
  tensorhub_server* server = NULL;
  tensorhub_publisher* trainer = NULL;
  const tensorhub_server_options how = {.struct_bytes = sizeof how};
  check(tensorhub_server_start(&how, &server, &error), error);
  const char* const address = tensorhub_server_address(server);
  if (dprintf(line[1], "%s", address) < 0) return 1;
  const tensorhub_worker_options options = who(address, "trainer-0");
  const tensorhub_tensor tensor = wq();
  check(tensorhub_publisher_create(&options, &trainer, &error), error);
  check(tensorhub_publisher_add(trainer, &tensor, &error), error);
  for (uint64_t step = 1; step <= 3; ++step) {
    for (int i = 0; i < values; ++i) weights[i] = (float)step;  // an optimizer step
    check(tensorhub_publisher_publish_snapshot(trainer, step, TENSORHUB_DEFAULT_TIMEOUT, NULL, &error),
          error);
    usleep(200000);
  }
  int status = 1;
  if (waitpid(child, &status, 0) != child) return 1;
  tensorhub_publisher_free(trainer);
  tensorhub_server_stop(server);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}
