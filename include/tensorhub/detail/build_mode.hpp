#pragma once
/// \file build_mode.hpp
/// Header-only (the default) or compiled: how the definitions of ordinary functions reach a program.
///
/// A header declares. Functions that are not templates are defined in an implementation file,
/// `impl/<name>.ipp` beside the header. Header-only use includes that file at the end of the header and marks
/// its functions `inline`. The target `TensorHub::compiled` defines `TENSORHUB_COMPILED` for everything that
/// links it; its library then contains the functions, compiled once.
///
/// Both modes are the same program. All declarations are in an inline namespace whose name states the mode. A
/// header-only file and a compiled file that exchange an object of this library therefore do not link: the
/// linker names the missing function, with the other mode's namespace in its name. The same holds for
/// _GLIBCXX_DEBUG, which gives the standard containers in these objects another layout.

#if defined(TENSORHUB_COMPILED)
#define TENSORHUB_DECL
#else
#define TENSORHUB_DECL inline
#define TENSORHUB_HEADER_ONLY
#endif

#if defined(TENSORHUB_COMPILED) && defined(_GLIBCXX_DEBUG)
#define TENSORHUB_MODE compiled_with_debug_containers
#elif defined(TENSORHUB_COMPILED)
#define TENSORHUB_MODE compiled
#elif defined(_GLIBCXX_DEBUG)
#define TENSORHUB_MODE header_only_with_debug_containers
#else
#define TENSORHUB_MODE header_only
#endif
