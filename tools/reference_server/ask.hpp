#pragma once
// What an operator asks a running reference server.

#include <string>
#include <vector>

/// `words`: "list", "stuck" or "why", the server's address, then a model, a replica and a shard, as far as
/// the question wants them; `--keys FOLDER` for a server that asks for keys. Prints the answer; returns the
/// exit status: 0, 2 for words that make no sense, 3 if something is stuck.
int ask(std::vector<std::string> words);
