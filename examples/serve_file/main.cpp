// serve_file: a model file, published from a memory map and pulled by other processes into an identical file.
//
//     serve_file publish model.safetensors --listen tcp://127.0.0.1:5570
//     serve_file pull copy.safetensors --server tcp://127.0.0.1:5570
//
// A puller needs to know nothing of the model: it asks the reference server for the layout. The header of the
// file travels as a tensor of its own, first. Every puller serves the others while it runs (--hold).

#include <charconv>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tensorhub/server.hpp>
#include <tensorhub/tensorhub.hpp>
#include <tensorhub/transports/tcp.hpp>
#include <thread>

#include "mapped_file.hpp"
#include "progress_bar.hpp"
#include "safetensors.hpp"

namespace {

using hub = tensorhub::hub<tensorhub::transports::tcp>;

constexpr std::string_view usage =
    "serve_file publish FILE [options]   until SIGINT or SIGTERM\n"
    "serve_file pull FILE [options]      writes FILE\n"
    "  --server A       the reference server\n"
    "  --listen A       publish: be the reference server, at A (default tcp://127.0.0.1:5570 without "
    "--server)\n"
    "  --model M        name of the model (file)\n"
    "  --replica R      name of this copy (publisher, or a random one)\n"
    "  --version N      publish: its version (1)\n"
    "  --host H         interface that others read from (127.0.0.1)\n"
    "  --timeout-s N    pull: give up after so long (600)\n"
    "  --hold           pull: serve on until SIGINT or SIGTERM\n";

constexpr std::string_view header_name = "__safetensors_header__";

struct settings {
  std::string verb, path, server, listen, model = "file", replica, host = "127.0.0.1";
  std::uint64_t version = 1;
  std::uint64_t timeout_s = 600;
  bool hold = false;
};

settings parse(int argc, char** argv) {
  settings out;
  if (argc == 2 && (std::string_view{argv[1]} == "--help" || std::string_view{argv[1]} == "-h")) {
    std::cout << usage;
    std::exit(0);
  }
  if (argc < 3) throw std::invalid_argument("give a verb and a file");
  out.verb = argv[1];
  out.path = argv[2];
  if (out.verb != "publish" && out.verb != "pull") throw std::invalid_argument("unknown verb " + out.verb);
  for (int i = 3; i < argc; ++i) {
    const std::string name = argv[i];
    if (name == "--hold") {
      out.hold = true;
      continue;
    }
    if (i + 1 == argc) throw std::invalid_argument("option " + name + " is unknown or has no value");
    const std::string value = argv[++i];
    const auto number = [&] {
      std::uint64_t parsed = 0;
      const auto [end, failed] = std::from_chars(value.data(), value.data() + value.size(), parsed);
      if (failed != std::errc{} || end != value.data() + value.size() || parsed == 0 ||
          parsed > 1'000'000'000)
        throw std::invalid_argument(name + " wants a number from 1 to 1000000000, not '" + value + "'");
      return parsed;
    };
    if (name == "--server")
      out.server = value;
    else if (name == "--listen")
      out.listen = value;
    else if (name == "--model")
      out.model = value;
    else if (name == "--replica")
      out.replica = value;
    else if (name == "--host")
      out.host = value;
    else if (name == "--version")
      out.version = number();
    else if (name == "--timeout-s")
      out.timeout_s = number();
    else
      throw std::invalid_argument("unknown option " + name);
  }
  if (out.server.empty() && out.verb == "pull") throw std::invalid_argument("pull needs --server");
  if (out.server.empty() && out.listen.empty()) out.listen = "tcp://127.0.0.1:5570";
  return out;
}

void wait_for_signal(const sigset_t& ends) {
  int received = 0;
  sigwait(&ends, &received);
}

void publish(const settings& given, const sigset_t& ends) {
  const serve_file::mapped_file file{given.path};
  const auto contents = serve_file::read_header(file.bytes());
  std::unique_ptr<hub::reference_server> server;
  if (!given.listen.empty())
    server =
        std::make_unique<hub::reference_server>(tensorhub::reference_server_options{.address = given.listen});
  const std::string address = server ? server->address() : given.server;

  hub::publisher publisher{{.server = address,
                            .model = given.model,
                            .replica = given.replica.empty() ? "publisher" : given.replica},
                           {.listen_host = given.host}};
  publisher.add(std::string{header_name}, file.data(), {contents.header_bytes}, tensorhub::dtype::u8);
  for (const auto& tensor : contents.tensors)
    publisher.add(tensor.spec.name, file.data() + tensor.offset, tensor.spec.shape, tensor.spec.type);
  const auto shown = publisher.publish(given.version);
  std::cout << "serving " << contents.tensors.size() << " tensors, " << shown.bytes << " bytes, as version "
            << given.version << " of model '" << given.model << "' at " << address << std::endl;
  wait_for_signal(ends);
  publisher.leave();
}

void pull(const settings& given, const sigset_t& ends) {
  const std::chrono::seconds timeout{given.timeout_s};
  tensorhub::worker_options who{
      .server = given.server,
      .model = given.model,
      .replica = given.replica.empty() ? "puller-" + std::to_string(::getpid()) : given.replica,
      .spot = true};
  std::optional<serve_file::mapped_file> file;  // ends after the subscriber, which reads and writes it
  hub::subscriber subscriber{who, {.listen_host = given.host}};
  const auto model = subscriber.describe_model(0, timeout);
  if (model.tensors.empty() || model.tensors.front().name != header_name)
    throw std::runtime_error("model '" + given.model + "' is no published file");
  std::uint64_t bytes = 0;
  for (const auto& tensor : model.tensors) bytes += tensor.bytes().value_or(0);

  file.emplace(given.path, bytes);
  std::uint64_t offset = 0;
  for (const auto& tensor : model.tensors) {
    subscriber.add(tensor.name, file->data() + offset, tensor.shape, tensor.type);
    offset += *tensor.bytes();
  }
  auto running = subscriber.update_async(tensorhub::latest, timeout);
  serve_file::progress_bar bar;
  while (!running.done()) {
    bar.show(running.progress());
    std::this_thread::sleep_for(std::chrono::milliseconds{20});
  }
  bar.clear();
  const auto done = running.wait(timeout);
  std::cout << "version " << done.version.value << " of model '" << given.model << "': " << done.bytes
            << " bytes in " << done.seconds << " s (" << static_cast<double>(done.bytes) * 1e-9 / done.seconds
            << " GB/s) from";
  for (std::size_t i = 0; i < done.sources.size(); ++i)
    std::cout << " " << done.sources[i] << " (" << done.source_bytes[i] << " bytes)";
  std::cout << std::endl;
  if (given.hold) wait_for_signal(ends);
  subscriber.leave();
}

}  // namespace

int main(int argc, char** argv) {
  // Blocked before any thread starts, so that all threads inherit it and `sigwait` gets the signals.
  sigset_t ends;
  sigemptyset(&ends);
  sigaddset(&ends, SIGINT);
  sigaddset(&ends, SIGTERM);
  sigprocmask(SIG_BLOCK, &ends, nullptr);
  try {
    const settings given = parse(argc, argv);
    given.verb == "publish" ? publish(given, ends) : pull(given, ends);
  } catch (const std::invalid_argument& e) {
    std::cerr << "serve_file: " << e.what() << "\n" << usage;
    return 2;
  } catch (const std::exception& e) {
    std::cerr << "serve_file: " << e.what() << "\n";
    return 1;
  }
}
