#include "ask.hpp"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <initializer_list>
#include <optional>
#include <string_view>
#include <tensorhub/key_files.hpp>
#include <tensorhub/server_client.hpp>
#include <tensorhub/types/plain_text.hpp>

namespace {

constexpr std::chrono::seconds patience{10};

std::string_view name_of(tensorhub::stuck_kind kind) {
  using tensorhub::stuck_kind;
  switch (kind) {
    case stuck_kind::no_version:
      return "no version";
    case stuck_kind::no_credit:
      return "no credit";
    case stuck_kind::absent_shards:
      return "absent shards";
    case stuck_kind::no_progress:
      return "no progress";
    case stuck_kind::draining:
      return "draining";
    case stuck_kind::unfinished_group:
      return "unfinished group";
    case stuck_kind::cut_off:
      return "cut-off";
    case stuck_kind::silent_worker:
      return "silent worker";
  }
  return "unknown";
}

/// What comes from the server was chosen by workers.
std::string shown(std::string_view text) {
  return tensorhub::escaped_text(text);
}

void print_list(tensorhub::server_client& client, const std::string& model) {
  const auto models = client.list(model, patience);
  if (models.empty()) std::puts("no worker has joined");
  for (const auto& entry : models) {
    std::string available;
    for (const auto version : entry.available) available += " " + to_string(version);
    std::printf("model %s: %u shards, %.1f MB, latest version %s, available:%s\n", shown(entry.name).c_str(),
                entry.shards, static_cast<double>(entry.bytes) * 1e-6, to_string(entry.latest).c_str(),
                available.empty() ? " none" : available.c_str());
    for (const auto& replica : entry.replicas) {
      std::printf("  replica %s: %u of %u shards joined, version %s, %u readers%s%s\n",
                  shown(replica.name).c_str(), replica.shards_joined, entry.shards,
                  to_string(replica.version).c_str(), replica.readers, replica.torn ? ", torn" : "",
                  replica.spot ? ", spot" : "");
    }
  }
}

int print_stuck(tensorhub::server_client& client, const std::string& model) {
  const auto report = client.stuck(model, std::chrono::seconds{1}, patience);
  for (const auto& one : report.entries) {
    std::printf("%8.1f s  %s: %s/%s/%u", static_cast<double>(one.waited_ms) * 1e-3,
                std::string{name_of(one.kind)}.c_str(), shown(one.model).c_str(), shown(one.replica).c_str(),
                one.shard);
    if (one.version) std::printf(", version %s", to_string(one.version).c_str());
    if (!one.peers.empty()) std::printf(", waits for %s", shown(one.peers).c_str());
    std::printf("\n            %s\n", shown(one.advice).c_str());
  }
  if (report.left_out > 0) std::printf("            and %u more\n", report.left_out);
  if (report.entries.empty()) std::puts("nothing is stuck");
  return report.entries.empty() ? 0 : 3;
}

void print_why(tensorhub::server_client& client, const std::vector<std::string>& about, std::uint32_t shard) {
  const std::string decisions = client.why(about[0], about[1], shard, patience);
  if (decisions.empty()) std::puts("no source was chosen for it yet");
  for (std::string_view left = decisions; !left.empty();) {
    const std::size_t end = std::min(left.find('\n'), left.size());
    std::puts(shown(left.substr(0, end)).c_str());
    left.remove_prefix(std::min(end + 1, left.size()));
  }
}

/// An order about a replica.
int order_replica(tensorhub::server_client& client, const std::string& order, const std::string& model,
                  const std::string& replica) {
  if (order == "resume") {
    client.resume(model, replica, patience);
    std::printf("replica %s may be read from again\n", replica.c_str());
    return 0;
  }
  if (order == "evict") {
    std::printf("replica %s: %u workers were declared dead\n", replica.c_str(),
                client.evict(model, replica, patience));
    return 0;
  }
  const auto drained = client.drain(model, replica, patience);
  std::printf("replica %s: %u workers drained, %u readers are left\n", replica.c_str(), drained.workers,
              drained.readers);
  return drained.readers == 0 ? 0 : 3;
}

/// An order about a model's versions.
void order_versions(tensorhub::server_client& client, const std::string& order, const std::string& model,
                    std::uint64_t number) {
  if (order == "retain") client.retain(model, static_cast<std::uint32_t>(number), patience);
  if (order == "pin") client.pin(model, number, patience);
  if (order == "release") client.release(model, number, patience);
  if (order == "roll-back") client.roll_back_to(model, number, patience);
  std::printf("model %s: done\n", model.c_str());
}

bool is_one_of(const std::string& word, std::initializer_list<std::string_view> words) {
  return std::ranges::find(words, word) != words.end();
}

}  // namespace

int ask(std::vector<std::string> words) {
  const auto refuse = [](const std::string& sentence) {
    std::fprintf(stderr,
                 "reference_server: %s\n"
                 "  --ask list ADDRESS [MODEL]\n"
                 "  --ask stuck ADDRESS [MODEL]\n"
                 "  --ask why ADDRESS MODEL REPLICA [SHARD]\n"
                 "  --ask retain|pin|release|roll-back ADDRESS MODEL NUMBER\n"
                 "  --ask evict|drain|resume ADDRESS MODEL REPLICA\n"
                 "each with --keys FOLDER (client.secret, server.public), or --keys FOLDER/NAME.secret (and "
                 "server.public beside it), if the server asks for keys\n",
                 sentence.c_str());
    return 2;
  };
  std::optional<tensorhub::client_security> with_keys;
  const auto keys = std::find(words.begin(), words.end(), "--keys");
  if (keys != words.end()) {
    if (keys + 1 == words.end()) return refuse("--keys wants a folder");
    std::filesystem::path secret = *(keys + 1);
    if (secret.extension() != ".secret") secret /= "client.secret";
    with_keys = {tensorhub::read_public_key(secret.parent_path() / "server.public"),
                 tensorhub::read_curve_keys(secret)};
    words.erase(keys, keys + 2);
  }
  if (words.size() < 2) return refuse("--ask wants a question or an order, and an address");
  const std::string& question = words[0];
  const std::vector<std::string> about(words.begin() + 2, words.end());
  std::uint64_t number = 0;
  const auto is_number = [&](std::size_t at) {
    const std::string& text = about[at];
    const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), number);
    return failed == std::errc{} && end == text.data() + text.size();
  };
  tensorhub::server_client client{{.server = words[1], .security = with_keys}};
  if (question == "list" && about.size() <= 1) {
    print_list(client, about.empty() ? std::string{} : about[0]);
    return 0;
  }
  if (question == "stuck" && about.size() <= 1)
    return print_stuck(client, about.empty() ? std::string{} : about[0]);
  if (question == "why" && (about.size() == 2 || about.size() == 3)) {
    if (about.size() == 3 && (!is_number(2) || number >= tensorhub::limits::shards))
      return refuse("'" + about[2] + "' is no shard");
    print_why(client, about, static_cast<std::uint32_t>(number));
    return 0;
  }
  if (is_one_of(question, {"evict", "drain", "resume"}) && about.size() == 2)
    return order_replica(client, question, about[0], about[1]);
  if (is_one_of(question, {"retain", "pin", "release", "roll-back"}) && about.size() == 2) {
    if (!is_number(1) || (question == "retain" && number > tensorhub::limits::retained_versions))
      return refuse("'" + about[1] + "' is no number that " + question + " takes");
    order_versions(client, question, about[0], number);
    return 0;
  }
  return refuse("'" + question + "' with " + std::to_string(words.size() - 1) +
                " words after it is no question or order: see --help for what each takes");
}
