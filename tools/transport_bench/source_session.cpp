// The source's side: makes the memory and the transports that the reader asks for, and tells its CPU time.

#include <tensorhub/detail/random_id.hpp>
#include <tensorhub/error.hpp>

#include "messages.hpp"
#include "session.hpp"

namespace transport_bench {

namespace {

channel::deadline in_seconds(double seconds) {
  return std::chrono::steady_clock::now() + std::chrono::duration_cast<std::chrono::steady_clock::duration>(
                                                std::chrono::duration<double>(seconds));
}

/// What the reader wants, within bounds.
struct wishes {
  std::vector<std::string> labels{};
  std::uint64_t regions = 0;
  std::uint64_t region_bytes = 0;
  memory_choice memory = memory_choice::file;
  std::uint64_t seed = 0;
  std::int64_t corrupt_offset = -1;
  double silence_seconds = 0;
};

wishes read_wishes(const json& hello, std::uint64_t most_bytes) {
  wishes out;
  out.labels = hello.at("transports").get<std::vector<std::string>>();
  out.regions = hello.at("regions").get<std::uint64_t>();
  out.region_bytes = hello.at("region_bytes").get<std::uint64_t>();
  out.memory = hello.at("memory").get<std::string>() == "plain" ? memory_choice::plain : memory_choice::file;
  out.seed = hello.at("seed").get<std::uint64_t>();
  out.corrupt_offset = hello.at("corrupt_offset").get<std::int64_t>();
  out.silence_seconds = std::clamp(hello.at("silence_seconds").get<double>(), 1.0, 1e6);
  if (out.labels.empty() || out.labels.size() > max_contenders)
    throw channel_error("the reader asks for " + std::to_string(out.labels.size()) + " transports");
  if (out.regions == 0 || out.regions > max_regions || out.region_bytes == 0 ||
      out.region_bytes > max_region_bytes / out.regions)
    throw channel_error("the reader asks for " + std::to_string(out.regions) + " regions of " +
                        std::to_string(out.region_bytes) + " bytes");
  if (most_bytes > 0 && out.regions * out.region_bytes > most_bytes)
    throw channel_error("the reader asks for " + std::to_string((out.regions * out.region_bytes) >> 20) +
                        " MiB, and this side gives " + std::to_string(most_bytes >> 20) +
                        " MiB: make --region smaller, or --most larger where --listen is");
  const std::uint64_t available = available_memory_bytes();
  if (available > 0 && out.regions * out.region_bytes > available)
    throw channel_error("the reader asks for " + std::to_string((out.regions * out.region_bytes) >> 20) +
                        " MiB, and this machine has " + std::to_string(available >> 20) +
                        " MiB available: make --region smaller");
  if (out.corrupt_offset >= 0 && static_cast<std::uint64_t>(out.corrupt_offset) >= out.region_bytes)
    throw channel_error("the reader asks for a flipped byte outside of the region");
  return out;
}

const contender_choice& find_contender(const settings& how, const std::string& label) {
  std::string served;
  for (const auto& each : how.contenders) {
    if (each.label == label) return each;
    served += (served.empty() ? "" : ", ") + each.label;
  }
  throw channel_error("this side serves " + served + ", the reader asks for " + label +
                      ": name the same transport on both sides");
}

/// Transports go before the memory that they have registered.
struct source_side {
  arena memory;
  std::vector<std::unique_ptr<bench_source>> transports{};
};

json describe(const source_description& made) {
  json regions = json::array();
  for (const auto& region : made.regions) regions.push_back(to_json(region));
  return {{"address", made.address.text},
          {"incarnation", made.self.value},
          {"create_seconds", made.create_seconds},
          {"register_seconds", made.register_seconds},
          {"regions", regions}};
}

}  // namespace

void serve_reader(channel& control, const settings& how) {
  std::unique_ptr<source_side> side;
  double silence_seconds = how.timeout_seconds;
  try {
    const json hello = receive_message(control, "hello", in_seconds(how.timeout_seconds));
    const wishes wanted = read_wishes(hello, how.most_bytes);
    silence_seconds = wanted.silence_seconds;
    for (const auto& label : wanted.labels) static_cast<void>(find_contender(how, label));
    side.reset(new source_side{arena{wanted.memory, wanted.regions, wanted.region_bytes}});
    const double first_touch = side->memory.touch();
    const double second_touch = side->memory.touch();
    fill_pattern(side->memory, wanted.seed);
    if (wanted.corrupt_offset >= 0)
      side->memory.ranges().front().data[wanted.corrupt_offset] ^= std::byte{0x10};
    json transports = json::array();
    for (const auto& label : wanted.labels) {
      const contender_choice& choice = find_contender(how, label);
      party_settings own;
      own.options = choice.options;
      own.host = control.local_host();
      own.peer_timeout = std::chrono::milliseconds{static_cast<std::int64_t>(how.timeout_seconds * 1000)};
      own.self = tensorhub::detail::random_id<tensorhub::incarnation>();
      try {
        auto made = choice.kind->make_source(own);
        transports.push_back(describe(made->expose(side->memory.ranges())));
        side->transports.push_back(std::move(made));
      } catch (const tensorhub::error& e) {
        transports.push_back({{"error", e.sentence()}});
      }
    }
    control.send(json{{"type", "ready"},
                      {"transports", transports},
                      {"first_touch_seconds", first_touch},
                      {"second_touch_seconds", second_touch},
                      {"environment", to_json(machine_facts(control.local_host()))}}
                     .dump(),
                 in_seconds(how.timeout_seconds));
  } catch (const json::exception&) {
    control.send(json{{"type", "refused"}, {"sentence", "the hello was not understood"}}.dump(),
                 in_seconds(2));
    throw channel_error(control.peer() + " sent a hello that is not understood");
  } catch (const std::exception& e) {
    try {
      control.send(json{{"type", "refused"}, {"sentence", e.what()}}.dump(), in_seconds(2));
    } catch (const channel_error&) {  // the first sentence is the one to tell
    }
    throw;
  }
  for (;;) {
    const json message = json::parse(control.receive(in_seconds(silence_seconds)), nullptr, false);
    const std::string type = text_of(message, "type");
    if (type == "done") {
      control.send(json{{"type", "bye"}}.dump(), in_seconds(how.timeout_seconds));
      return;
    }
    if (type == "gave_up") {
      throw reader_gave_up(control.peer() + " gave up: " + text_of(message, "sentence"));
    }
    if (type != "cpu") throw channel_error(control.peer() + " sent something that is not understood");
    control.send(json{{"type", "cpu"}, {"seconds", cpu_seconds()}}.dump(), in_seconds(how.timeout_seconds));
  }
}

}  // namespace transport_bench
