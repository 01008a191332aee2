// One file of a program that mixes both build modes: this one is header-only.
#include <tensorhub/types/location.hpp>

bool is_here(const tensorhub::location& place) {
  return place.host == "here";
}
