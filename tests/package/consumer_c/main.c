/* A program in C against the installed shared library. */
#include <stdio.h>
#include <tensorhub/tensorhub.h>

int main(void) {
  tensorhub_server* server = NULL;
  tensorhub_error* error = NULL;
  const tensorhub_server_options how = {.struct_bytes = sizeof how};
  if (tensorhub_abi_version() != TENSORHUB_ABI_VERSION) return 1;
  if (tensorhub_server_start(&how, &server, &error) != TENSORHUB_OK) {
    fprintf(stderr, "%s\n", tensorhub_error_text(error));
    return 2;
  }
  tensorhub_server_stop(server);
  return 0;
}
