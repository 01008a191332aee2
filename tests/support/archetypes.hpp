#pragma once
/// \file archetypes.hpp
/// One archetype per concept: it does what the concept's requirement table says and nothing more.
///
/// An archetype has no copy, no default constructor, no comparison and no helper that the table does not
/// name. A template of the library that compiles with it therefore asks for nothing beyond its concept. They
/// are also the shortest examples of how to write a model; the rules that a compiler cannot see (purity, what
/// a decision may name, ...) hold for them too.

#include "support/archetypes/policies.hpp"
#include "support/archetypes/shells.hpp"
#include "support/archetypes/transport.hpp"
