// The driver of bench/peers for UCX. Over TCP a reader asks by a small message, and the source puts the bytes
// into the reader's memory by one ucp_put, with a small message behind it. (One tagged message took twice as
// long and more.) On the same host a reader gets the bytes by one ucp_get. All sleep on the descriptor of
// their worker when there is nothing to do. (compare.py starts it; driver.hpp has the protocol.)

#include <poll.h>
#include <ucp/api/ucp.h>

#include <array>
#include <cstring>
#include <iomanip>
#include <map>
#include <vector>

#include "driver.hpp"

namespace {

using namespace bench::peers;

constexpr ucp_tag_t requests = 1, answers = 2;

void check(ucs_status_t status, const char* what) {
  if (status != UCS_OK) throw std::runtime_error(std::string{what} + ": " + ucs_status_string(status));
}

std::string to_hex(const void* data, std::size_t bytes) {
  std::ostringstream out;
  out << std::hex << std::setfill('0');
  for (std::size_t i = 0; i < bytes; ++i)
    out << std::setw(2) << static_cast<unsigned>(static_cast<const unsigned char*>(data)[i]);
  return out.str();
}
std::vector<std::byte> from_hex(const std::string& text) {
  std::vector<std::byte> out;
  for (std::size_t i = 0; i + 1 < text.size(); i += 2)
    out.push_back(static_cast<std::byte>(std::stoi(text.substr(i, 2), nullptr, 16)));
  return out;
}

/// A context with one worker, for ever.
class engine {
 public:
  engine() {
    ucp_params_t wanted{};
    wanted.field_mask = UCP_PARAM_FIELD_FEATURES;
    wanted.features = UCP_FEATURE_TAG | UCP_FEATURE_RMA | UCP_FEATURE_WAKEUP;
    check(ucp_init(&wanted, nullptr, &context_), "ucp_init");
    ucp_worker_params_t how{};
    how.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
    how.thread_mode = UCS_THREAD_MODE_SINGLE;
    check(ucp_worker_create(context_, &how, &worker_), "ucp_worker_create");
    check(ucp_worker_get_efd(worker_, &descriptor_), "ucp_worker_get_efd");
  }
  [[nodiscard]] ucp_context_h context() const { return context_; }
  [[nodiscard]] ucp_worker_h worker() const { return worker_; }

  [[nodiscard]] std::vector<std::byte> address() const {
    ucp_address_t* at = nullptr;
    std::size_t bytes = 0;
    check(ucp_worker_get_address(worker_, &at, &bytes), "ucp_worker_get_address");
    const auto* begin = reinterpret_cast<const std::byte*>(at);
    return {begin, begin + bytes};
  }
  [[nodiscard]] ucp_ep_h connect(const std::byte* address) const {
    ucp_ep_params_t to{};
    to.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS;
    to.address = reinterpret_cast<const ucp_address_t*>(address);
    ucp_ep_h out = nullptr;
    check(ucp_ep_create(worker_, &to, &out), "ucp_ep_create");
    return out;
  }
  /// Does what there is to do. If there is nothing, sleeps until there is, or until the other descriptor can
  /// be read; whether that can.
  [[nodiscard]] bool progress(int other = -1) const {
    if (ucp_worker_progress(worker_) != 0) return false;
    const bool must_not_sleep = ucp_worker_arm(worker_) == UCS_ERR_BUSY;
    std::array<pollfd, 2> watched{{{descriptor_, POLLIN, 0}, {other, POLLIN, 0}}};
    ::poll(watched.data(), watched.size(), must_not_sleep ? 0 : -1);
    return watched[1].revents != 0;
  }
  void finish(ucs_status_ptr_t request) const {
    if (request == nullptr) return;
    if (UCS_PTR_IS_ERR(request)) check(UCS_PTR_STATUS(request), "a request");
    while (ucp_request_check_status(request) == UCS_INPROGRESS) static_cast<void>(progress());
    check(ucp_request_check_status(request), "a request");
    ucp_request_free(request);
  }

 private:
  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  int descriptor_ = -1;
};

constexpr ucp_request_param_t no_options{};

/// What another process needs to read or write this memory: the worker's address, the key, and where it is.
std::string offer(const engine& here, std::byte* data, std::size_t bytes) {
  ucp_mem_map_params_t what{};
  what.field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH;
  what.address = data;
  what.length = bytes;
  ucp_mem_h mapped = nullptr;
  check(ucp_mem_map(here.context(), &what, &mapped), "ucp_mem_map");
  void* key = nullptr;
  std::size_t key_bytes = 0;
  check(ucp_rkey_pack(here.context(), mapped, &key, &key_bytes), "ucp_rkey_pack");
  const auto at = here.address();
  return to_hex(at.data(), at.size()) + ":" + to_hex(key, key_bytes) + ":" +
         std::to_string(reinterpret_cast<std::uintptr_t>(data));
}

/// The other side of an offer.
struct remote_memory {
  remote_memory(const engine& here, const std::string& offered) {
    std::istringstream in{offered};
    std::string address, packed, place;
    std::getline(std::getline(std::getline(in, address, ':'), packed, ':'), place);
    peer = here.connect(from_hex(address).data());
    check(ucp_ep_rkey_unpack(peer, from_hex(packed).data(), &key), "ucp_ep_rkey_unpack");
    at = std::stoull(place);
  }
  ucp_ep_h peer = nullptr;
  ucp_rkey_h key = nullptr;
  std::uintptr_t at = 0;
};

class source {
 public:
  explicit source(const settings& given)
      : data_{map_memory(given)}, bytes_{given.bytes}, address_{offer(here_, data_, bytes_)} {
    listen();
  }
  [[nodiscard]] std::string address() const { return address_; }
  void publish(std::uint64_t) {}
  void read(std::uint64_t) {}
  void release() {}

  /// Like `serve` of driver.hpp, and answers readers as well.
  void serve_all() {
    std::cout << "ready " << address_ << std::endl;
    for (std::string order;;) {
      const bool is_ordered = here_.progress(STDIN_FILENO);
      answer();
      if (is_ordered && !std::getline(std::cin, order)) return;
      if (is_ordered) obey(*this, order);
    }
  }

 private:
  void listen() {
    request_ =
        ucp_tag_recv_nbx(here_.worker(), asked_.data(), asked_.size(), requests, ~ucp_tag_t{0}, &no_options);
    if (UCS_PTR_IS_ERR(request_)) check(UCS_PTR_STATUS(request_), "ucp_tag_recv_nbx");
  }
  /// A request is the reader's offer. When the bytes are there, the reader is told.
  void answer() {
    while (request_ == nullptr || ucp_request_check_status(request_) != UCS_INPROGRESS) {
      if (request_ != nullptr) ucp_request_free(request_);
      const std::string offered{asked_.data()};
      if (!readers_.contains(offered)) readers_.emplace(offered, remote_memory{here_, offered});
      const remote_memory& to = readers_.at(offered);
      let_go(ucp_put_nbx(to.peer, data_, bytes_, to.at, to.key, &no_options));
      flushes_.emplace_back(ucp_ep_flush_nbx(to.peer, &no_options), to.peer);
      asked_.fill(0);
      listen();
    }
    std::erase_if(flushes_, [this](const auto& one) {
      const auto [flush, peer] = one;
      if (UCS_PTR_IS_PTR(flush) && ucp_request_check_status(flush) == UCS_INPROGRESS) return false;
      let_go(flush);
      let_go(ucp_tag_send_nbx(peer, &done_, 1, answers, &no_options));
      return true;
    });
  }
  /// It goes on by itself, or has ended.
  static void let_go(ucs_status_ptr_t request) {
    if (UCS_PTR_IS_ERR(request)) check(UCS_PTR_STATUS(request), "a request");
    if (request != nullptr) ucp_request_free(request);
  }

  engine here_;
  std::byte* data_;
  std::size_t bytes_;
  std::string address_;
  std::array<char, 4096> asked_{};
  std::byte done_{};
  ucs_status_ptr_t request_ = nullptr;
  std::map<std::string, remote_memory> readers_;
  std::vector<std::pair<ucs_status_ptr_t, ucp_ep_h>> flushes_;
};

class reader {
 public:
  explicit reader(const settings& given)
      : data_{map_memory(given)},
        bytes_{given.bytes},
        is_same_host_{given.is_same_host()},
        ours_{offer(here_, data_, bytes_)},
        theirs_{here_, given.source} {}
  [[nodiscard]] std::string address() const { return "-"; }
  void publish(std::uint64_t) {}
  void release() {}
  void read(std::uint64_t) {
    if (is_same_host_) {
      here_.finish(ucp_get_nbx(theirs_.peer, data_, bytes_, theirs_.at, theirs_.key, &no_options));
      return;
    }
    std::byte done{};
    const auto answer = ucp_tag_recv_nbx(here_.worker(), &done, 1, answers, ~ucp_tag_t{0}, &no_options);
    here_.finish(ucp_tag_send_nbx(theirs_.peer, ours_.data(), ours_.size(), requests, &no_options));
    here_.finish(answer);
  }

 private:
  engine here_;
  std::byte* data_;
  std::size_t bytes_;
  bool is_same_host_;
  std::string ours_;
  remote_memory theirs_;
};

}  // namespace

int main(int argc, char** argv) {
  try {
    const settings given = settings::of(argc, argv);
    if (given.is_source()) {
      source driver{given};
      driver.serve_all();
    } else {
      reader driver{given};
      serve(driver);
    }
  } catch (const std::exception& e) {
    std::cerr << "ucx: " << e.what() << std::endl;
    return 1;
  }
}
