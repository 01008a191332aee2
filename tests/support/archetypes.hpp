#pragma once
/// \file archetypes.hpp
/// One archetype per concept: a model with exactly what the concept's requirement table demands.
///
/// An archetype has no copy, no default constructor, no comparison and no helper that the table does not
/// name. A template of the library that compiles with the archetype therefore requires nothing beyond the
/// concept. Archetypes are also the shortest examples of a model; they obey the rules that a compiler cannot
/// check too (purity, which versions a decision may name, ...).

#include "support/archetypes/policies.hpp"
#include "support/archetypes/shells.hpp"
#include "support/archetypes/transport.hpp"
