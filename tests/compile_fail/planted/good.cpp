// expect: this fails
#ifndef TENSORHUB_TWIN
static_assert(sizeof(int) == 0, "this fails");
#endif
