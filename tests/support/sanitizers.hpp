#pragma once
/// \file sanitizers.hpp
/// Which sanitizer this test is built with: 0 or 1. g++ tells it with a macro, clang++ with a feature.

#if defined(__SANITIZE_ADDRESS__)
#define TENSORHUB_UNDER_ADDRESS_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define TENSORHUB_UNDER_ADDRESS_SANITIZER 1
#endif
#endif
#ifndef TENSORHUB_UNDER_ADDRESS_SANITIZER
#define TENSORHUB_UNDER_ADDRESS_SANITIZER 0
#endif

#if defined(__SANITIZE_THREAD__)
#define TENSORHUB_UNDER_THREAD_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define TENSORHUB_UNDER_THREAD_SANITIZER 1
#endif
#endif
#ifndef TENSORHUB_UNDER_THREAD_SANITIZER
#define TENSORHUB_UNDER_THREAD_SANITIZER 0
#endif
