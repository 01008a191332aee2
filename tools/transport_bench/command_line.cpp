// One table of options: what is parsed and what --help says come from the same rows.

#include <functional>
#include <set>

#include "channel.hpp"
#include "settings.hpp"

namespace transport_bench {

namespace {

/// While the words are read; becomes `settings` at the end.
struct draft {
  settings out{};
  bool all = false;
  bool has_role = false;
  std::string transports{};
  std::vector<std::pair<std::string, std::string>> set{};  // of --set and its short forms
};

struct option_row {
  std::vector<std::string> names;
  std::string value;  ///< empty: a flag; in brackets: may be left out
  std::string help;
  bool of_reader;  ///< makes no sense with --listen
  std::function<void(draft&, const std::string&)> take;
};
struct option_group {
  std::string title;
  std::vector<option_row> rows;
};

constexpr std::uint64_t max_size = 1ull << 40;

void become(draft& d, role part, const std::string& where) {
  if (d.has_role) throw usage_error("--listen and --connect: one of them, once");
  d.has_role = true;
  d.out.part = part;
  d.out.where = parse_host_and_port(where, default_port);
}

void listen_at(draft& d, const std::string& where) {
  become(d, role::listen, where);
  if (d.out.where.host.empty()) d.out.where.host = "127.0.0.1";
  if (d.out.most_bytes == 0) d.out.most_bytes = default_most_bytes;
}
void give_at_most(draft& d, const std::string& size) {
  d.out.most_bytes = parse_size(size, 1, max_region_bytes, "--most");
}

std::vector<option_group> make_options() {
  const auto set_as = [](std::string name) {
    return [name](draft& d, const std::string& v) { d.set.emplace_back(name, v); };
  };
  std::vector<option_group> out;
  out.push_back(
      {"Sides",
       {{{"--listen"},
         "[host:port]",
         "be the source (127.0.0.1:5580; 0.0.0.0:5580 for other machines; port 0: any free one)",
         false,
         listen_at},
        {{"--connect"},
         "host:port",
         "be the reader of the source that listens there",
         true,
         [](draft& d, const std::string& v) {
           if (v.empty()) throw usage_error("--connect needs host:port");
           become(d, role::connect, v);
         }},
        {{"--forever"},
         "",
         "with --listen: serve one reader after the other",
         false,
         [](draft& d, const std::string&) { d.out.forever = true; }},
        {{"--most"}, "size", "with --listen: what a reader may make it allocate (4G)", false, give_at_most},
        {{"--wait"},
         "time",
         "with --listen: end if no reader comes for so long (600s)",
         false,
         [](draft& d, const std::string& v) { d.out.wait_seconds = parse_seconds(v, 0.1, 1e6, "--wait"); }},
        {{"--timeout"},
         "time",
         "no answer, or no byte with reads outstanding, for so long is an error (10s)",
         false,
         [](draft& d, const std::string& v) {
           d.out.timeout_seconds = parse_seconds(v, 0.1, 3600, "--timeout");
         }}}});
  out.push_back(
      {"Sweep (every combination is a row)",
       {{{"--sizes"},
         "list",
         "bytes per read (4K,64K,1M,8M)",
         true,
         [](draft& d, const std::string& v) { d.out.sizes = parse_list(v, 1, max_size, "--sizes"); }},
        {{"--depths", "--depth"},
         "list",
         "reads outstanding per thread (1,4)",
         true,
         [](draft& d, const std::string& v) { d.out.depths = parse_list(v, 1, 4096, "--depths"); }},
        {{"--streams", "--queue-pairs"},
         "list",
         "connections or queue pairs per endpoint, where the transport has them (1)",
         true,
         [](draft& d, const std::string& v) { d.out.streams = parse_list(v, 1, 256, "--streams"); }},
        {{"--threads"},
         "list",
         "reader threads, each with a queue and an endpoint (1)",
         true,
         [](draft& d, const std::string& v) { d.out.threads = parse_list(v, 1, 256, "--threads"); }},
        {{"--latency"},
         "",
         "the same as --sizes 64,1K,4K,64K --depths 1",
         true,
         [](draft& d, const std::string&) {
           d.out.sizes = {64, 1u << 10, 4u << 10, 64u << 10};
           d.out.depths = {1};
         }}}});
  out.push_back(
      {"Measurement",
       {{{"--warm-up"},
         "time",
         "reads before each row that do not count (0.1s)",
         true,
         [](draft& d, const std::string& v) {
           d.out.warm_up_seconds = parse_seconds(v, 0, 600, "--warm-up");
         }},
        {{"--duration"},
         "time",
         "of each row, all rounds together (1s)",
         true,
         [](draft& d, const std::string& v) {
           d.out.duration_seconds = parse_seconds(v, 0.001, 3600, "--duration");
         }},
        {{"--iterations"},
         "number",
         "reads per thread and row instead of a duration",
         true,
         [](draft& d, const std::string& v) {
           d.out.iterations = parse_number(v, 1, 1ull << 40, "--iterations");
         }},
        {{"--rounds"},
         "number",
         "parts of each row; several transports take turns in each (5)",
         true,
         [](draft& d, const std::string& v) { d.out.rounds = parse_number(v, 1, 1000, "--rounds"); }},
        {{"--busy-poll"},
         "",
         "poll for completions without ever sleeping: lowest latency, a core per thread",
         true,
         [](draft& d, const std::string&) { d.out.busy_poll = true; }},
        {{"--smoke"},
         "",
         "tiny work: shows that everything runs, measures nothing",
         true,
         [](draft& d, const std::string&) {
           d.out.sizes = {4u << 10, 64u << 10, 1u << 20};
           d.out.region_bytes = 8u << 20;
           d.out.warm_up_seconds = 0.005;
           d.out.duration_seconds = 0.02;
           d.out.rounds = 2;
         }}}});
  out.push_back({"Memory (both sides have the same regions; touched before anything is measured)",
                 {{{"--region"},
                   "size",
                   "bytes of each region (256M, or the largest size)",
                   true,
                   [](draft& d, const std::string& v) {
                     d.out.region_bytes = parse_size(v, 1, max_region_bytes, "--region");
                   }},
                  {{"--regions"},
                   "number",
                   "how many (1)",
                   true,
                   [](draft& d, const std::string& v) {
                     d.out.regions = parse_number(v, 1, max_regions, "--regions");
                   }},
                  {{"--memory"},
                   "file|plain",
                   "file: a memfd, which transports may map or send from; plain: as malloc's (file)",
                   true,
                   [](draft& d, const std::string& v) {
                     if (v != "file" && v != "plain") throw usage_error("--memory: write file or plain");
                     d.out.memory = v == "file" ? memory_choice::file : memory_choice::plain;
                   }}}});
  out.push_back({"Validation",
                 {{{"--validate"},
                   "",
                   "check every byte after every round, read or not; figures are then of cold caches",
                   true,
                   [](draft& d, const std::string&) { d.out.validate = true; }},
                  {{"--corrupt"},
                   "source|target",
                   "flip one byte of the source's memory, or of what was received: the check must fail",
                   true,
                   [](draft& d, const std::string& v) {
                     if (v != "source" && v != "target")
                       throw usage_error("--corrupt: write source or target");
                     d.out.corrupt = v == "source" ? corruption::source : corruption::target;
                     d.out.validate = true;
                   }},
                  {{"--seed"}, "number", "of the pattern (1)", true, [](draft& d, const std::string& v) {
                     d.out.seed = parse_number(v, 0, UINT64_MAX, "--seed");
                   }}}});
  out.push_back({"Options of the transports",
                 {{{"--set"},
                   "name=value",
                   "an option of the transport, or of one of them: --set tcp.io_threads=4",
                   false,
                   [](draft& d, const std::string& v) {
                     const auto equals = v.find('=');
                     if (equals == std::string::npos || equals == 0)
                       throw usage_error("--set: write name=value, as in --set io_threads=4");
                     d.set.emplace_back(v.substr(0, equals), v.substr(equals + 1));
                   }},
                  {{"--provider"},
                   "name",
                   "short for --set provider=name (libfabric); or name it libfabric:shm",
                   false,
                   set_as("provider")},
                  {{"--device"}, "name", "short for --set device=name (verbs)", false, set_as("device")},
                  {{"--copy-threads"},
                   "number",
                   "short for --set copy_threads=number (same_host)",
                   false,
                   set_as("copy_threads")}}});
  out.push_back(
      {"Output",
       {{{"--json"}, "file", "everything, with the environment", true, [](draft& d, const std::string& v) {
           d.out.json_path = v;
         }}}});
  return out;
}

const std::vector<option_group>& options() {
  static const std::vector<option_group> all = make_options();
  return all;
}

const option_row& find_option(const std::string& name) {
  std::string known;
  for (const auto& group : options()) {
    for (const auto& row : group.rows) {
      for (const auto& each : row.names) {
        if (each == name) return row;
        known += " " + each;
      }
    }
  }
  throw usage_error("there is no option " + name + "; there are:" + known + " --all --list --help");
}

/// "tcp", "same_host", "libfabric:shm".
contender_choice choose(const std::string& word) {
  contender_choice out;
  const auto colon = word.find(':');
  out.kind = &kind_named(word.substr(0, colon));
  out.label = word;
  if (colon != std::string::npos) {
    if (out.kind->name != "libfabric") throw usage_error("'" + word + "': only libfabric has providers");
    out.options["provider"] = word.substr(colon + 1);
  }
  return out;
}

bool knows(const transport_kind& kind, const std::string& option) {
  return std::ranges::any_of(kind.options, [&](const auto& row) { return row.name == option; });
}

/// `name` may be "transport.option"; else the option goes to all who know it.
void set_option(std::vector<contender_choice>& contenders, std::string name, const std::string& value) {
  std::string only;
  if (const auto dot = name.find('.'); dot != std::string::npos) {
    only = name.substr(0, dot);
    name = name.substr(dot + 1);
  }
  bool found = false;
  std::string known;
  for (auto& each : contenders) {
    if (!only.empty() && only != each.kind->name && only != each.label) continue;
    for (const auto& row : each.kind->options) known += " " + std::string{each.kind->name} + "." + row.name;
    if (!knows(*each.kind, name)) continue;
    found = true;
    if (name == "provider" && each.label.find(':') != std::string::npos) continue;  // it has named its own
    each.options[name] = value;
  }
  if (!found) {
    throw usage_error("none of the chosen transports has an option '" + (only.empty() ? "" : only + ".") +
                      name + "'; there are:" + known);
  }
}

void choose_contenders(draft& d) {
  auto& contenders = d.out.contenders;
  if (d.all == !d.transports.empty())
    throw usage_error("name a transport, a list of them (tcp,same_host) or --all; see --help");
  d.out.all = d.all;
  if (d.all) {
    for (const auto& kind : transport_kinds())
      if (kind.built) contenders.push_back({std::string{kind.name}, &kind, {}});
  } else {
    for (const auto& word : split(d.transports, ',')) contenders.push_back(choose(word));
  }
  if (contenders.size() > max_contenders)
    throw usage_error("more than " + std::to_string(max_contenders) + " transports at once");
  for (const auto& [name, value] : d.set) set_option(contenders, name, value);
  std::set<std::string> labels;
  for (auto& each : contenders) {
    each.kind->check(each.options);
    if (const auto provider = each.options.find("provider"); provider != each.options.end())
      each.label = std::string{each.kind->name} + ":" + provider->second;
    if (!labels.insert(each.label).second) throw usage_error("transport " + each.label + " is named twice");
  }
}

void fill_defaults(settings& out) {
  if (out.sizes.empty()) out.sizes = {4u << 10, 64u << 10, 1u << 20, 8u << 20};
  if (out.depths.empty()) out.depths = {1, 4};
  if (out.streams.empty()) out.streams = {1};
  if (out.threads.empty()) out.threads = {1};
  if (out.region_bytes == 0) out.region_bytes = std::max<std::uint64_t>(256u << 20, out.sizes.back());
}

void check_together(const settings& out) {
  if (out.forever && out.part != role::listen) throw usage_error("--forever goes with --listen");
  if (out.part == role::connect && out.where.port == 0) throw usage_error("--connect needs a port");
  const std::uint64_t largest = out.sizes.back();
  if (largest > out.region_bytes) {
    throw usage_error("a read of " + size_text(largest) + " does not fit a region of " +
                      size_text(out.region_bytes) + ": make --region larger");
  }
  if (out.region_bytes > max_region_bytes / out.regions)
    throw usage_error("all regions together have more than " + size_text(max_region_bytes));
  for (const auto& each : out.contenders) {
    if (each.kind->streams_are.empty() && out.streams != std::vector<std::uint64_t>{1} &&
        out.contenders.size() == 1)
      throw usage_error(each.label + " has no streams: leave --streams out");
  }
  if (out.validate && out.region_bytes / out.sizes.front() * out.regions > (1ull << 28)) {
    throw usage_error("--validate: " + size_text(out.sizes.front()) + " reads from regions of " +
                      size_text(out.region_bytes) + " are too many places; make --region smaller");
  }
}

settings parse_settings(const std::vector<std::string>& words) {
  draft d;
  const std::string* of_reader = nullptr;
  bool listens = false;
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::string& word = words[i];
    if (word == "--all") {
      d.all = true;
    } else if (!word.starts_with("-")) {
      if (!d.transports.empty()) throw usage_error("'" + word + "': only one transport or list; see --help");
      d.transports = word;
    } else {
      const auto equals = word.find('=');
      const bool joined = equals != std::string::npos;
      const std::string name = word.substr(0, equals);
      const option_row& option = find_option(name);
      std::string value = joined ? word.substr(equals + 1) : "";
      const bool optional = option.value.starts_with('[');
      if (option.value.empty() && joined) throw usage_error(option.names[0] + " takes no value");
      if (!option.value.empty() && !joined) {
        const bool there = i + 1 < words.size() && !words[i + 1].starts_with("--");
        if (!there && !optional) throw usage_error(option.names[0] + " needs a value: " + option.value);
        // What may be left out is there if it looks like an address.
        if (there && (!optional || words[i + 1].find(':') != std::string::npos ||
                      words[i + 1].find_first_not_of("0123456789") == std::string::npos))
          value = words[++i];
      }
      option.take(d, value);
      if (option.of_reader && word != "--connect") of_reader = &option.names[0];
      listens = listens || option.names[0] == "--listen";
    }
  }
  if (listens && of_reader != nullptr)
    throw usage_error(*of_reader + " belongs to the reader: leave it out on the side that listens");
  choose_contenders(d);
  fill_defaults(d.out);
  check_together(d.out);
  return d.out;
}

}  // namespace

command_line parse_command_line(const std::vector<std::string>& words) {
  for (const std::string& word : words) {
    if (word == "--help" || word == "-h") return {command::help, {}};
    if (word == "--list") return {command::list, {}};
  }
  return {command::run, parse_settings(words)};
}
std::string help_text() {
  std::string out =
      "transport_bench measures one-sided reads of another process's memory.\n"
      "\n"
      "  transport_bench TRANSPORTS [options]                        both sides on this machine\n"
      "  transport_bench TRANSPORTS --listen [host:port] [options]   the source, on one machine\n"
      "  transport_bench TRANSPORTS --connect host:port [options]    the reader, on the other\n"
      "\n"
      "TRANSPORTS is a name, a list (tcp,same_host: they take turns and are compared) or --all.\n";
  for (const auto& kind : transport_kinds()) {
    out += "  " + std::string{kind.name} +
           std::string(12 - std::min<std::size_t>(11, kind.name.size()), ' ') + std::string{kind.summary} +
           (kind.built ? "" : " (not built in: needs " + std::string{kind.needs} + ")") + "\n";
  }
  out +=
      "\nSizes are bytes with K, M, G (powers of 1024). Lists: 4K,64K,1M; ranges: 4K..64M doubles, 4K..64M*4 "
      "takes "
      "every\nsecond power. Times: 0.5, 2s, 200ms. Defaults are in parentheses.\n";
  for (const auto& group : options()) {
    out += "\n" + group.title + "\n";
    for (const auto& row : group.rows) {
      std::string left = "  ";
      for (const auto& name : row.names) left += (left.size() > 2 ? ", " : "") + name;
      if (!row.value.empty()) left += " " + row.value;
      if (left.size() < 30)
        left.resize(30, ' ');
      else
        left += "\n" + std::string(30, ' ');
      out += left + row.help + "\n";
    }
  }
  out +=
      "\nOther\n"
      "  --all                       all transports that are built in and work here\n"
      "  --list                      the transports and their options for --set\n"
      "  -h, --help                  this text\n"
      "\n"
      "Exit status: 0 done; 1 failed (unreachable, killed, refused); 2 wrong options; 3 wrong bytes were "
      "read;\n"
      "4 --corrupt was not noticed.\n";
  return out;
}

std::string list_text() {
  std::string out;
  for (const auto& kind : transport_kinds()) {
    out += std::string{kind.name} + ": " + std::string{kind.summary} + "\n";
    if (!kind.built) {
      out += "  not built in: needs " + std::string{kind.needs} + "\n";
      continue;
    }
    if (!kind.streams_are.empty()) out += "  --streams sets " + std::string{kind.streams_are} + "\n";
    for (const auto& row : kind.options)
      out += "  " + row.name + "=" + row.value + "\n      " + row.meaning + "\n";
  }
  return out;
}

}  // namespace transport_bench
