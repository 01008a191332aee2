// Device memory over the same-host transport: what comes over the socket is bounded, on both sides.

#include <doctest/doctest.h>

#include "same_host_device.hpp"
#include "tensorhub/detail/unique_fd.hpp"

using namespace same_host_device;

namespace wire = tensorhub::transports::same_host_detail;

namespace {

/// A reader's connection without a reader: it says what it is told to say.
struct raw_reader {
  wire::link connection;

  raw_reader(const same_host& source, const same_host::options& options)
      : connection{source.address(),
                   options,
                   wire::machine_identity::of_this_process(),
                   reader_id,
                   source_id,
                   std::make_shared<wire::import_table>(),
                   wire::clock::now() + 5s} {}

  /// The answer; nothing: the source has closed the connection.
  std::optional<wire::region_answer> ask(const wire::region_request& request) {
    if (!wire::send_packet(connection.socket(), request)) return std::nullopt;
    for (;;) {
      pollfd entry{connection.socket(), POLLIN, 0};
      REQUIRE(::poll(&entry, 1, 20'000) == 1);
      wire::region_answer answer;
      tensorhub::detail::unique_fd file;
      switch (wire::receive_packet(connection.socket(), answer, file)) {
        case wire::packet_outcome::taken:
          return answer;
        case wire::packet_outcome::nothing:
          continue;
        default:
          return std::nullopt;
      }
    }
  }
};

/// A source's side of one connection, whose requests are all answered with `answer` and a file.
template <typename Grant>
void answer_always(int listener, const wire::grant_page& grants, const Grant& own,
                   const wire::region_answer& answer, int file) {
  pollfd entry{listener, POLLIN, 0};
  if (::poll(&entry, 1, 20'000) != 1) return;
  const tensorhub::detail::unique_fd socket{::accept(listener, nullptr, nullptr)};
  tensorhub::detail::unique_fd unwanted;
  const auto take = [&](auto& packet) {
    entry = {socket.get(), POLLIN, 0};
    return ::poll(&entry, 1, 20'000) == 1 &&
           wire::receive_packet(socket.get(), packet, unwanted) == wire::packet_outcome::taken;
  };
  wire::hello greeting;
  if (!take(greeting)) return;
  wire::welcome welcome;
  welcome.source = source_id.value;
  welcome.grant = own.number;
  welcome.grant_slot = own.slot;
  static_cast<void>(wire::send_packet(socket.get(), welcome, grants.file()));
  wire::region_request request;
  while (take(request)) {  // until the reader has hung up
    auto lie = answer;
    lie.number = request.number;
    static_cast<void>(wire::send_packet(socket.get(), lie, file));
  }
}

}  // namespace

TEST_CASE("requests for staged pieces that no honest reader makes") {
  const calm_device calm;
  some_memory memory{kind_of_memory::device}, plain{kind_of_memory::host_plain};
  same_host source{{}, source_id};
  const std::array ranges{memory.range(), plain.range()};
  const auto regions = source.register_memory(ranges, region_access::remote_read);
  std::array<wire::region_key, 2> keys;
  for (std::size_t i = 0; i < 2; ++i)
    std::memcpy(&keys[i], source.describe(regions[i]).key.bytes.data(), sizeof keys[i]);
  const auto piece = [&](std::uint32_t slot, std::uint64_t offset, std::uint64_t bytes) {
    return wire::region_request{1, wire::request_kind::staged_piece, slot, offset, bytes, keys[0]};
  };
  {
    raw_reader good{source, {}};
    CHECK(good.ask(piece(3, region_bytes - 1, 1))->status == wire::answer_status::granted);
    // Outside of the region, of another kind of memory, or with another key: denied, and no more than that.
    CHECK(good.ask(piece(0, region_bytes, 1))->status == wire::answer_status::denied);
    CHECK(good.ask(piece(0, UINT64_MAX, 2))->status == wire::answer_status::denied);
    CHECK(good.ask(piece(0, region_bytes - 8, 9))->status == wire::answer_status::denied);
    auto of_host = piece(0, 0, 8);
    of_host.key = keys[1];
    CHECK(good.ask(of_host)->status == wire::answer_status::denied);
    auto forged = piece(0, 0, 8);
    forged.key.secret[1] ^= 1;
    CHECK(good.ask(forged)->status == wire::answer_status::denied);
    CHECK(good.ask(piece(0, 0, wire::stage_piece_bytes))->status == wire::answer_status::granted);
  }
  for (const auto& bad : {piece(wire::stage_slots, 0, 8), piece(0, 0, 0),
                          piece(0, 0, wire::stage_piece_bytes + 1), piece(0, 0, UINT64_MAX)}) {
    raw_reader reader{source, {}};
    CHECK(!reader.ask(bad));
  }
  // More at a time than there are slots.
  fake_device::instance().set.delay_ns = 100'000'000;
  raw_reader greedy{source, {}};
  for (std::uint32_t i = 0; i < wire::stage_slots; ++i)
    REQUIRE(wire::send_packet(greedy.connection.socket(), piece(i, 0, 8)));
  bool is_closed = false;
  for (std::size_t i = 0; i <= wire::stage_slots && !is_closed; ++i) is_closed = !greedy.ask(piece(0, 0, 8));
  CHECK(is_closed);
}

TEST_CASE("answers that no honest source gives: the reader breaks the connection off, nothing is copied") {
  const calm_device calm;
  wire::grant_page grants;
  const auto own = grants.take(), of_region = grants.take();
  wire::region_answer good;
  good.status = wire::answer_status::granted;
  good.bytes = region_bytes;
  good.grant = of_region.number;
  good.grant_slot = of_region.slot;
  good.memory = wire::region_memory::mappable_device;
  good.exported.allocation_bytes = region_bytes;
  std::vector<wire::region_answer> answers(7, good);
  answers[0].memory = static_cast<wire::region_memory>(3);
  answers[1].exported.offset = 1;
  answers[2].exported.offset = UINT64_MAX;
  answers[3].bytes = region_bytes + 1;
  // With what is no file of memory, and whose reads may wait for ever.
  std::array<int, 2> pipe{};
  REQUIRE(::pipe2(pipe.data(), O_CLOEXEC) == 0);
  const tensorhub::detail::unique_fd pipe_out{pipe[0]}, pipe_in{pipe[1]};
  const tensorhub::detail::unique_fd folder{::open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC)};
  for (std::size_t i = 4; i < 6; ++i) {
    answers[i].memory = wire::region_memory::host;
    answers[i].file = 1;
    answers[i].brings_file = 1;
    answers[i].bytes = 1;
  }
  answers[6].file = 5;  // it never comes, however often it is asked for
  const std::uint64_t copies = fake_device::instance().counted.copies;
  for (std::size_t i = 0; i < answers.size(); ++i) {
    const wire::region_answer& answer = answers[i];
    const int file = i == 4 ? pipe_out.get() : i == 5 ? folder.get() : -1;
    const std::string name = "tensorhub-test-" + std::to_string(::getpid());
    const auto listener = wire::listen_at(name);
    const std::jthread liar{[&] { answer_always(listener.get(), grants, own, answer, file); }};
    reading_side reader{kind_of_memory::device, {.attach = tensorhub::transports::memory_attach::never}};
    const wire::host_address address{wire::machine_identity::of_this_process(), name};
    reader.endpoint.emplace(reader.through.connect(reader.queue, {address.text()}, source_id, 5s));
    tensorhub::remote_region remote{0, region_bytes, {}};
    remote.key.used_bytes = sizeof(wire::region_key);
    CHECK(reader.read(remote) == counts{{completion_status::peer_lost, 1}});
    reader.endpoint.reset();
  }
  CHECK(fake_device::instance().counted.copies == copies);
}
