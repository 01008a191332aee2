// expect: a sentence that no compiler says
#ifndef TENSORHUB_TWIN
static_assert(sizeof(int) == 0, "another sentence");
#endif
