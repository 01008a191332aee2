// The other file: compiled mode. It does not link with the first one, for its `location` is another type.
#include <tensorhub/types/location.hpp>

bool is_here(const tensorhub::location& place);

int main() {
  return is_here({.host = "here"}) ? 0 : 1;
}
