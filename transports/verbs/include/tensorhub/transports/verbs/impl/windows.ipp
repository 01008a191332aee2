#pragma once
/// \file windows.ipp
/// Definitions of windows.hpp.

#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <memory>
#include <thread>

#include "tensorhub/transports/verbs/windows.hpp"

namespace tensorhub::inline TENSORHUB_MODE::transports::verbs_detail {

TENSORHUB_DECL int window_maker::make(ibv_mr& over, ibv_mw*& made) noexcept {
  made = nullptr;
  const std::lock_guard lock{mutex_};
  handle<ibv_mw> window;  // outlives a queue pair that might bind it still
  int trouble = queue_pair_ ? 0 : open();
  if (trouble == 0) {
    errno = 0;
    window.reset(::ibv_alloc_mw(&domain_, IBV_MW_TYPE_1));
    if (!window) return errno == 0 ? ENOMEM : errno;
    trouble = bind(*window, over);
  }
  if (trouble == 0) {
    made = window.release();
    return 0;
  }
  queue_pair_.reset();
  completions_.reset();
  return trouble;
}

TENSORHUB_DECL int window_maker::open() noexcept {
  errno = 0;
  completions_.reset(::ibv_create_cq(domain_.context, 1, nullptr, nullptr, 0));
  if (!completions_) return errno == 0 ? EIO : errno;
  ibv_qp_init_attr wanted{};
  wanted.send_cq = wanted.recv_cq = completions_.get();
  wanted.cap = {1, 1, 1, 1, 0};
  wanted.qp_type = IBV_QPT_RC;
  queue_pair_.reset(::ibv_create_qp(&domain_, &wanted));
  if (!queue_pair_) return errno == 0 ? EIO : errno;
  return connect_to_itself();
}

TENSORHUB_DECL int window_maker::connect_to_itself() noexcept {
  ibv_port_attr port{};
  ibv_qp_attr to{};
  to.qp_state = IBV_QPS_INIT;
  to.port_num = port_;
  int trouble = ::ibv_query_port(domain_.context, port_, &port);
  if (trouble == 0)
    trouble = ::ibv_modify_qp(queue_pair_.get(), &to,
                              IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
  if (trouble != 0) return trouble;
  to.qp_state = IBV_QPS_RTR;
  to.path_mtu = port.active_mtu;
  to.dest_qp_num = queue_pair_->qp_num;
  to.max_dest_rd_atomic = 1;
  to.min_rnr_timer = 12;
  to.ah_attr.port_num = port_;
  to.ah_attr.dlid = port.lid;
  if (port.link_layer == IBV_LINK_LAYER_ETHERNET) {
    to.ah_attr.is_global = 1;
    to.ah_attr.grh.hop_limit = 1;
    to.ah_attr.grh.sgid_index = static_cast<std::uint8_t>(gid_index_);
    if (::ibv_query_gid(domain_.context, port_, gid_index_, &to.ah_attr.grh.dgid) != 0) return ENXIO;
  }
  trouble = ::ibv_modify_qp(queue_pair_.get(), &to,
                            IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
  if (trouble != 0) return trouble;
  to.qp_state = IBV_QPS_RTS;
  to.timeout = 14;
  to.retry_cnt = to.rnr_retry = 7;
  to.max_rd_atomic = 1;
  return ::ibv_modify_qp(queue_pair_.get(), &to,
                         IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                             IBV_QP_MAX_QP_RD_ATOMIC);
}

TENSORHUB_DECL int window_maker::bind(ibv_mw& window, ibv_mr& over) noexcept {
  ibv_mw_bind wanted{};
  wanted.send_flags = IBV_SEND_SIGNALED;
  wanted.bind_info = {&over, reinterpret_cast<std::uintptr_t>(over.addr), over.length,
                      IBV_ACCESS_REMOTE_READ};
  if (const int trouble = ::ibv_bind_mw(queue_pair_.get(), &window, &wanted); trouble != 0) return trouble;
  const auto until = std::chrono::steady_clock::now() + bind_timeout;
  for (;;) {
    ibv_wc done{};
    const int count = ::ibv_poll_cq(completions_.get(), 1, &done);
    if (count < 0) return EIO;
    if (count > 0) return done.status == IBV_WC_SUCCESS ? 0 : -static_cast<int>(done.status);
    if (std::chrono::steady_clock::now() >= until) return ETIMEDOUT;
    std::this_thread::yield();
  }
}

TENSORHUB_DECL std::string window_trouble(int number) {
  if (number < 0)
    return std::string{"the device does not bind a memory window: "} +
           ::ibv_wc_status_str(static_cast<ibv_wc_status>(-number));
  if (number == ETIMEDOUT) return "the device does not say within 2 s that a memory window is bound";
  return "there is no memory window: " + reason(number);
}

TENSORHUB_DECL std::unique_ptr<window_maker> find_windows(ibv_pd& domain, std::uint8_t port, int gid_index,
                                                          revocation_mode mode, std::string& why_not) {
  if (mode == revocation_mode::registration) {
    why_not = "revocation_mode::registration";
    return nullptr;
  }
  ibv_device_attr device{};
  if (domain.context->device->transport_type == IBV_TRANSPORT_IWARP ||
      ::ibv_query_device(domain.context, &device) != 0 ||
      (device.device_cap_flags & IBV_DEVICE_MEM_WINDOW) == 0) {
    why_not = "the device has no memory windows";
    return nullptr;
  }
  constexpr std::uint32_t soft_roce = 0xffffff;
  if (mode == revocation_mode::automatic && device.vendor_id == soft_roce) {
    why_not = "Soft-RoCE sends a packet after its memory window has been destroyed";
    return nullptr;
  }
  auto found = std::make_unique<window_maker>(domain, port, gid_index);
  // A whole page, of whatever size: what is registered is not there in a fork.
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  const std::unique_ptr<void, void (*)(void*)> tried{std::aligned_alloc(page, page), &std::free};
  constexpr unsigned access = IBV_ACCESS_MW_BIND;
  const handle<ibv_mr> memory{tried ? ::ibv_reg_mr(&domain, tried.get(), page, access) : nullptr};
  if (!memory) {
    why_not = "memory cannot be registered for memory windows: " + reason(errno);
    return nullptr;
  }
  ibv_mw* made = nullptr;
  const int trouble = found->make(*memory, made);
  const handle<ibv_mw> window{made};
  if (trouble == 0) return found;
  why_not = window_trouble(trouble);
  return nullptr;
}

}  // namespace tensorhub::inline TENSORHUB_MODE::transports::verbs_detail
