#pragma once
// What an operator asks a running reference server, and orders of it.

#include <string>
#include <vector>

/// `words`: a question ("list", "stuck", "why") or an order ("retain", "pin", "release", "roll-back",
/// "evict", "drain", "resume"), the server's address, then what it is about; `--keys FOLDER` for a server
/// that asks for keys. Prints the answer; returns the exit status: 0, 2 for words that make no sense, 3 if
/// something is stuck, or still reads from what is drained.
int ask(std::vector<std::string> words);
