// expect: this fails
static_assert(sizeof(int) == 0, "this fails");
