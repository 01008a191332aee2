/// \file near.cpp
/// The module `tensorhub._cuda`: workers of memory on CUDA devices, over the transports of every machine.

#include "../near_policies.hpp"

TENSORHUB_PYTHON_DEFINE_MODULE(tensorhub_python::near_policies)
