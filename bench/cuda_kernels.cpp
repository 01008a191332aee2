// The kernels against cuMemcpyAsync: digests of chunks, and packing of thousands of small tensors.

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstdio>
#include <random>
#include <tensorhub/memory/cuda.hpp>
#include <tensorhub/types/blake3.hpp>
#include <tensorhub/types/xxh3.hpp>
#include <vector>

#include "cuda_timer.hpp"
#include "harness.hpp"

namespace {

using tensorhub::copy_run;
using tensorhub::digest128;
using tensorhub::digest_job;
using tensorhub::keyed_digest_job;

constexpr std::uint64_t chunk_bytes = 1u << 20;

std::vector<std::byte> noise(std::uint64_t bytes) {
  std::mt19937_64 words{bytes};
  std::vector<std::byte> out(bytes);
  for (std::uint64_t i = 0; i + 8 <= bytes; i += 8) {
    const std::uint64_t word = words();
    std::memcpy(out.data() + i, &word, 8);
  }
  return out;
}

constexpr tensorhub::digest_key some_key{1, 2, 3};

bench::comparison compare_digests(const bench::arguments& given, bench::cuda_timer& timer) {
  const std::uint64_t chunks = given.smoke ? 10 : 1000;
  const std::uint64_t bytes = chunks * chunk_bytes;
  tensorhub::cuda_memory space;
  const auto source = space.allocate(bytes);
  const auto target = space.allocate(bytes);
  const auto host = noise(bytes);
  space.copy(source.data(), host.data(), bytes);
  std::vector<digest_job> jobs;
  for (std::uint64_t i = 0; i < chunks; ++i)
    jobs.push_back({source.data() + i * chunk_bytes, chunk_bytes, i});
  std::vector<digest128> digests(chunks);

  bench::comparison rivals{
      given, "digests on the device",
      std::to_string(chunks) +
          " chunks of 1 MiB, one batch, against one cuMemcpyAsync of the same bytes within the "
          "device; the device's time between two events of the lane, which is kept busy before; 1 "
          "warming round, then 15, order rotates; medians"};
  const double gigabytes = static_cast<double>(bytes) * 1e-9;
  const auto add = [&](const std::string& name, double gigabytes_of_it, auto work) {
    rivals.add(name, [&timer, gigabytes_of_it, work] {
      const double seconds = timer.seconds(work);
      return bench::figures{{"ms", seconds * 1e3}, {"GB/s", gigabytes_of_it / seconds}};
    });
  };
  add("cuMemcpyAsync, device to device", gigabytes,
      [&](auto& lane) { return lane.copy(target.data(), source.data(), bytes); });
  add("digests, all chunks", gigabytes, [&](auto& lane) { return lane.digest(jobs, digests.data()); });
  for (const std::size_t count : {std::size_t{1}, std::size_t{16}, std::size_t{64}}) {
    if (count >= jobs.size()) continue;
    add("digests, " + std::to_string(count) + " of the chunks",
        static_cast<double>(count * chunk_bytes) * 1e-9,
        [&, count](auto& lane) { return lane.digest(std::span{jobs}.first(count), digests.data()); });
  }
  std::vector<digest_job> shifted = jobs;
  for (digest_job& job : shifted) job = {job.data + 1, job.bytes - 1, job.seed};
  std::vector<digest128> of_shifted(chunks);
  add("digests, all chunks, from odd addresses", gigabytes,
      [&](auto& lane) { return lane.digest(shifted, of_shifted.data()); });
  std::vector<keyed_digest_job> keyed;
  for (const digest_job& job : jobs) keyed.push_back({job.data, job.bytes, some_key});
  std::vector<digest128> of_keyed(chunks);
  add("BLAKE3 digests, all chunks", gigabytes,
      [&](auto& lane) { return lane.keyed_digest(keyed, of_keyed.data()); });
  rivals.run(given.smoke ? 1 : 15);
  rivals.print({"ms", "GB/s"});
  for (std::uint64_t i = 0; i < chunks; ++i) {
    const std::span chunk{host.data() + i * chunk_bytes, chunk_bytes};
    if (digests[i] != tensorhub::detail::xxh3_128(chunk, i) ||
        of_shifted[i] != tensorhub::detail::xxh3_128(chunk.subspan(1), i) ||
        of_keyed[i] != tensorhub::detail::blake3_keyed_hash(
                           std::bit_cast<tensorhub::detail::blake3_value>(some_key), chunk)
                           .first_half())
      throw std::runtime_error("a digest is wrong");
  }
  rivals.goal("digests of 1,000 chunks / copy within the device",
              rivals.ratio("digests, all chunks", {"cuMemcpyAsync, device to device"}, "GB/s", true), 0.5);
  return rivals;
}

bench::comparison compare_packing(const bench::arguments& given, bench::cuda_timer& timer) {
  // As a model's norms and biases: most have some KiB, some have up to a MiB.
  const std::size_t count = given.smoke ? 50 : 2000;
  std::vector<std::uint64_t> sizes;
  for (std::size_t i = 0; i < count; ++i)
    sizes.push_back(i % 20 == 0 ? (i % 100 + 1) * 10'000 : i % 8 * 4096 + 512);
  tensorhub::cuda_memory space;
  std::vector<tensorhub::cuda_memory::allocation> tensors;
  std::vector<copy_run> pack;
  std::vector<copy_run> unpack;
  std::uint64_t bytes = 0;
  for (const std::uint64_t size : sizes) bytes += (size + 15) / 16 * 16;
  const auto packed = space.allocate(bytes);
  std::uint64_t at = 0;
  for (std::size_t i = 0; i < count; ++i) {
    tensors.push_back(space.allocate(sizes[i]));
    pack.push_back({packed.data() + at, tensors[i].data(), sizes[i]});
    unpack.push_back({tensors[i].data(), packed.data() + at, sizes[i]});
    at += (sizes[i] + 15) / 16 * 16;
  }
  bench::comparison rivals{given, "small tensors, packed",
                           std::to_string(count) + " tensors, " + std::to_string(bytes >> 20) +
                               " MiB in all, in allocations of their own, into one; the device's time "
                               "between two events of the lane, which "
                               "is kept busy before; 1 warming round, then 15, order rotates; medians"};
  const auto add = [&](const std::string& name, auto work) {
    rivals.add(name, [&timer, work, bytes] {
      const double started = bench::now_seconds();
      double queued = 0;
      const double seconds = timer.seconds(
          [&](auto& lane) {
            const auto ticket = work(lane);
            queued = bench::now_seconds() - started;
            return ticket;
          },
          40);
      return bench::figures{{"device ms", seconds * 1e3},
                            {"host ms to queue", queued * 1e3},
                            {"GB/s", static_cast<double>(bytes) * 1e-9 / seconds}};
    });
  };
  add("one batch: pack", [&](auto& lane) { return lane.copy_all(pack); });
  add("one batch: unpack", [&](auto& lane) { return lane.copy_all(unpack); });
  add("one cuMemcpyAsync each", [&](auto& lane) {
    tensorhub::lane_ticket last = 0;
    for (const copy_run& run : pack) last = lane.copy(run.to, run.from, run.bytes);
    return last;
  });
  rivals.run(given.smoke ? 1 : 15);
  rivals.print({"device ms", "host ms to queue", "GB/s"});
  rivals.goal("1 ms / packing of 2,000 small tensors", 1.0 / rivals.figure("one batch: pack", "device ms"),
              1.0);
  rivals.goal("1 ms / unpacking of 2,000 small tensors",
              1.0 / rivals.figure("one batch: unpack", "device ms"), 1.0);
  return rivals;
}

}  // namespace

int main(int argc, char** argv) {
  const bench::arguments given = bench::parse(argc, argv);
  if (const std::string why = bench::no_gpu(); !why.empty()) {
    std::printf("SKIPPED: bench cuda_kernels: %s\n", why.c_str());
    return 0;
  }
  auto& device = bench::cuda_device::current();
  std::printf("%s\n", device.description().c_str());
  bench::cuda_timer timer{device};
  const auto digests = compare_digests(given, timer);
  const auto packing = compare_packing(given, timer);
  bench::write_json(given.json_path, {&digests, &packing});
}
