// A transport of your own in six steps, and the conformance suite that says whether it is one. This one moves
// bytes between objects of one process, by memcpy under one lock.
#include <atomic>
#include <cstring>
#include <iostream>
#include <map>
#include <mutex>
#include <random>
#include <set>
#include <tensorhub/tensorhub.hpp>
#include <tensorhub/testing/transport_conformance.hpp>

using namespace tensorhub;
std::mutex lock;  // of everything that processes share
std::mt19937_64 unguessable{std::random_device{}()};
struct memory_owner {
  incarnation self;
  std::map<std::uint64_t, memory_range> exported{};  // by key
  std::set<incarnation> refused{};
  std::atomic<std::uint64_t> bytes = 0;
};
std::map<std::string, std::weak_ptr<memory_owner>> processes;  // by address

struct in_process {
  // Step 1: say that you have read the table in concepts/transport.hpp, a name, and what it can do.
  using concept_tag = transport_tag;
  static constexpr std::string_view name = "in_process";
  static constexpr transport_capabilities capabilities{.survives_access_errors = true};
  struct options {};
  // Step 2: a process, and the address that its peers connect to.
  explicit in_process(options = {}, incarnation id = {}) : own{new memory_owner{id}} {
    const std::lock_guard held{lock};
    processes[where = "in_process://" + std::to_string(unguessable())] = own;
  }
  transport_address address() const { return {where}; }
  // Step 3: registered memory. All ranges or none; nobody reads a region once it is destroyed.
  struct registration {
    std::shared_ptr<memory_owner> owner;
    memory_range range;
    bool readable;
    std::uint64_t key = 0;
    ~registration() {
      const std::lock_guard held{lock};
      owner->exported.erase(key);
      owner->bytes -= range.bytes;
    }
  };
  struct memory_region {
    std::unique_ptr<registration> it;
    memory_range range() const noexcept { return it->range; }
  };
  std::vector<memory_region> register_memory(std::span<const memory_range> ranges, region_access access) {
    std::vector<memory_region> all;  // destroyed again, should a later range be refused
    for (const memory_range& range : ranges) {
      if (range.data == nullptr || range.bytes == 0 || range.kind != memory_kind::host)
        throw error(errc::invalid_argument, "in_process: cannot take range " + std::to_string(all.size()));
      const bool readable = access != region_access::local_write;
      all.emplace_back().it.reset(new registration{own, range, readable});
      own->bytes += range.bytes;
      revoke(all.back());  // makes the first key
    }
    return all;
  }
  std::uint64_t registered_bytes() const noexcept { return own->bytes; }
  // Step 4: keys. They name a region of this process, cannot be guessed, and can be taken back.
  remote_region describe(const memory_region& region) const {
    remote_region out{.base = 0, .bytes = region.it->range.bytes};
    const std::uint64_t words[] = {own->self.value, region.it->key};
    std::memcpy(out.key.bytes.data(), words, out.key.used_bytes = sizeof words);
    return out;
  }
  void revoke(memory_region& region) noexcept {
    const std::lock_guard held{lock};
    own->exported.erase(region.it->key);
    region.it->key = unguessable();
    if (region.it->readable) own->exported[region.it->key] = region.it->range;
  }
  void cut_off(incarnation peer) noexcept {
    const std::lock_guard held{lock};
    own->refused.insert(peer);
  }
  // Step 5: connections, to exactly the process that was meant.
  struct endpoint {
    std::weak_ptr<memory_owner> to;
    incarnation to_whom, self;
    std::unique_ptr<bool> broken = std::make_unique<bool>(false);
    incarnation peer() const noexcept { return to_whom; }
    bool usable() const noexcept { return !*broken; }
  };
  struct queue;
  endpoint connect(queue&, const transport_address& at, incarnation peer, duration) {
    const std::lock_guard held{lock};
    const auto to = processes[at.text].lock();
    if (!to || to->self != peer || to->refused.contains(own->self))
      throw error(errc::transport_failed, "in_process: " + at.text + " is gone, another process, or refuses");
    return {to, peer, own->self};
  }
  // Step 6: the data path. Each posted read completes once; nothing throws.
  struct queue {
    std::size_t depth, count = 0;
    std::unique_ptr<completion[]> done = std::make_unique<completion[]>(depth);
    post_result post_read(endpoint& through, const memory_region& into, std::uint64_t offset,
                          const remote_slice& from, request_id id) noexcept {
      if (count == depth) return post_result::queue_full;
      const std::lock_guard held{lock};
      done[count++] = {id, read(through, into.range(), offset, from)};
      return post_result::posted;
    }
    std::size_t poll(std::span<completion> completions) noexcept {
      std::size_t taken = 0;
      while (taken < completions.size() && count > 0) completions[taken++] = done[--count];
      return taken;
    }
    void wait(duration) noexcept { std::this_thread::yield(); }  // whatever was posted is done already
    void wake() noexcept {}
    std::size_t outstanding() const noexcept { return count; }

    static completion_status read(endpoint& through, const memory_range& into, std::uint64_t offset,
                                  const remote_slice& from) noexcept {
      if (offset > into.bytes || from.bytes > into.bytes - offset) return completion_status::local_error;
      const auto source = through.to.lock();
      *through.broken = !source || source->refused.contains(through.self);
      if (*through.broken) return source ? completion_status::cut_off : completion_status::peer_lost;
      const remote_region& region = *from.region;
      std::uint64_t words[2] = {};
      if (region.key.used_bytes == sizeof words) std::memcpy(words, region.key.bytes.data(), sizeof words);
      const auto found = source->exported.find(words[1]);
      const auto range = found == source->exported.end() ? memory_range{} : found->second;
      if (words[0] != source->self.value || region.base != 0 || region.bytes != range.bytes ||
          from.offset > range.bytes || from.bytes > range.bytes - from.offset)
        return completion_status::access_denied;
      if (from.bytes > 0) std::memcpy(into.data + offset, range.data + from.offset, from.bytes);
      return completion_status::ok;
    }
  };
  queue make_queue(std::size_t depth) { return {depth}; }
  std::shared_ptr<memory_owner> own;
  std::string where;
};
static_assert(transport<in_process>);

int main() {
  const auto violations = testing::check_transport<in_process>();
  for (const auto& each : violations) std::cout << each.rule << ": " << each.sentence << "\n";
  std::cout << testing::transport_rules<in_process>().size() << " rules, broken: " << violations.size()
            << "\n";
  return violations.empty() ? 0 : 1;
}
