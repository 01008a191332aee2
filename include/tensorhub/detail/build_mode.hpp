#pragma once
/// \file build_mode.hpp
/// Header-only (the default) or compiled: where the definitions of ordinary functions come from.
///
/// A header declares; what is no template is defined in an implementation file, `impl/<name>.ipp` beside the header.
/// Header-only use includes that file at the end of the header and marks its functions `inline`. With the target
/// `TensorHub::compiled`, which defines `TENSORHUB_COMPILED` for whoever links it, they are compiled once, in the
/// library.
///
/// Both modes are the same program. Everything is declared in an inline namespace whose name says the mode, so that
/// a header-only file and a compiled one which exchange an object of this library do not link: the linker names the
/// function that is missing, with the other mode's namespace in its name.

#if defined(TENSORHUB_COMPILED)
#define TENSORHUB_DECL
#define TENSORHUB_MODE compiled
#else
#define TENSORHUB_DECL inline
#define TENSORHUB_MODE header_only
#define TENSORHUB_HEADER_ONLY
#endif
