// expect: narrowing|cannot be narrowed
#include "tensorhub/types/version_number.hpp"

#ifdef TENSORHUB_TWIN
tensorhub::version_number version{2};
#else
tensorhub::version_number version{1.5};
#endif
