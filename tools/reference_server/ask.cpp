#include "ask.hpp"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <string_view>
#include <tensorhub/key_files.hpp>
#include <tensorhub/tensorhub.hpp>
#include <tensorhub/transports/tcp.hpp>

namespace {

using hub = tensorhub::hub<tensorhub::transports::tcp>;
constexpr std::chrono::seconds patience{10};

std::optional<tensorhub::client_security> with_keys;

/// Somebody who asks and never joins.
hub::subscriber asker(const std::string& server, const std::string& model, const std::string& replica = "-",
                      std::uint32_t shard = 0) {
  return hub::subscriber{{.server = server,
                          .model = model,
                          .replica = replica,
                          .shard = {shard, shard + 1},
                          .security = with_keys}};
}

std::vector<tensorhub::messages::model_entry> models_of(const std::string& server, const std::string& model) {
  return asker(server, "-").list(model, patience);
}

std::string_view name_of(tensorhub::messages::stuck_kind kind) {
  using tensorhub::messages::stuck_kind;
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

void print_list(const std::string& server, const std::string& model) {
  const auto models = models_of(server, model);
  if (models.empty()) std::puts("no worker has joined");
  for (const auto& entry : models) {
    std::string available;
    for (const auto version : entry.available) available += " " + to_string(version);
    std::printf("model %s: %u shards, %.1f MB, latest version %s, available:%s\n", entry.name.c_str(),
                entry.shards, static_cast<double>(entry.bytes) * 1e-6, to_string(entry.latest).c_str(),
                available.empty() ? " none" : available.c_str());
    for (const auto& replica : entry.replicas) {
      std::printf("  replica %s: %u of %u shards joined, version %s, %u readers%s%s\n", replica.name.c_str(),
                  replica.shards_joined, entry.shards, to_string(replica.version).c_str(), replica.readers,
                  replica.torn ? ", torn" : "", replica.spot ? ", spot" : "");
    }
  }
}

int print_stuck(const std::string& server, const std::string& model) {
  std::size_t count = 0;
  for (const auto& entry : models_of(server, model)) {
    const auto reply = asker(server, entry.name).stuck(std::chrono::seconds{1}, patience);
    for (const auto& one : reply.entries) {
      std::printf("%8.1f s  %s: %s/%s/%u", static_cast<double>(one.waited_ms) * 1e-3,
                  std::string{name_of(one.kind)}.c_str(), one.model.c_str(), one.replica.c_str(), one.shard);
      if (one.version) std::printf(", version %s", to_string(one.version).c_str());
      if (!one.peers.empty()) std::printf(", waits for %s", one.peers.c_str());
      std::printf("\n            %s\n", one.advice.c_str());
    }
    if (reply.left_out > 0) std::printf("            and %u more\n", reply.left_out);
    count += reply.entries.size();
  }
  if (count == 0) std::puts("nothing is stuck");
  return count == 0 ? 0 : 3;
}

}  // namespace

int ask(std::vector<std::string> words) {
  const auto refuse = [](const std::string& sentence) {
    std::fprintf(stderr,
                 "reference_server: %s\n"
                 "  --ask list ADDRESS [MODEL]\n"
                 "  --ask stuck ADDRESS [MODEL]\n"
                 "  --ask why ADDRESS MODEL REPLICA [SHARD]\n"
                 "each with --keys FOLDER (client.secret, server.public), if the server asks for keys\n",
                 sentence.c_str());
    return 2;
  };
  const auto keys = std::find(words.begin(), words.end(), "--keys");
  if (keys != words.end()) {
    if (keys + 1 == words.end()) return refuse("--keys wants a folder");
    const std::filesystem::path folder = *(keys + 1);
    with_keys = {tensorhub::read_public_key(folder / "server.public"),
                 tensorhub::read_curve_keys(folder / "client.secret")};
    words.erase(keys, keys + 2);
  }
  if (words.size() < 2) return refuse("--ask wants a question and an address");
  const std::string& question = words[0];
  const std::string& server = words[1];
  const std::string model = words.size() > 2 ? words[2] : std::string{};
  if (question == "list" && words.size() <= 3) {
    print_list(server, model);
    return 0;
  }
  if (question == "stuck" && words.size() <= 3) return print_stuck(server, model);
  if (question != "why" || words.size() < 4 || words.size() > 5)
    return refuse("'" + question + "' with " + std::to_string(words.size() - 1) + " words is no question");
  std::uint32_t shard = 0;
  if (words.size() == 5) {
    const std::string& text = words[4];
    const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), shard);
    if (failed != std::errc{} || end != text.data() + text.size() || shard >= tensorhub::limits::shards)
      return refuse("'" + text + "' is no shard");
  }
  const std::string decisions = asker(server, model, words[3], shard).why(patience);
  std::fputs(decisions.empty() ? "no source was chosen for it yet\n" : decisions.c_str(), stdout);
  return 0;
}
